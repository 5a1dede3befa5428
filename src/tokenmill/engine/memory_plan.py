"""The memory plan: how many requests of which length fit at once, and what would make it more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tokenmill.core.byte_size import format_bytes
from tokenmill.scheduler.admission import Capacity

_LEAST_MARGIN = 256 * 2**20
_MARGIN_SHARE = 10
_LENGTHS = (512, 2048, 8192, 32768, 131072)
MOST_ROWS = 1024
"""Where counting ends: past it memory is not what limits a step."""


def margin_bytes(available: int) -> int:
    """Returns what is kept free of `available` bytes: a tenth, and at least 256 MiB.

    It is for what no request is charged for: a step's intermediate results and logits, texts and
    tokens, and what other processes come to need meanwhile.
    """
    return max(_LEAST_MARGIN, available // _MARGIN_SHARE)


def state_budget(available: int) -> int:
    """Returns the bytes that sequences may take where none are configured, at least 0.

    Args:
        available: what the process can still take once the model is loaded, in bytes; see
            `telemetry.memory.available_bytes`.
    """
    return max(0, available - margin_bytes(available))


class Bound(Enum):
    """What keeps one more request out."""

    MEMORY = "memory"
    ROWS = "rows"
    BOTH = "memory and rows"


class Fit(NamedTuple):
    """How many requests of one length fit.

    Attributes:
        tokens: of prompt and reply together.
        bytes_each: that one such request takes alone.
        at_once: how many run together; 0 where not even one fits.
        bound: what keeps one more out.
        by_memory: how many the memory alone has room for, counted up to 1,024.
    """

    tokens: int
    bytes_each: int
    at_once: int
    bound: Bound
    by_memory: int

    @property
    def bytes_per_token(self) -> float:
        """State bytes per token of such a request; includes what it has at any length."""
        return self.bytes_each / self.tokens


class Knob(NamedTuple):
    """What lets more requests run at once.

    Attributes:
        name: of the option; or "memory" for what no option gives.
        value: what to set it to; None where that is not a number.
        effect: what that does, with its figures.
    """

    name: str
    value: int | None
    effect: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a loaded model's requests can have.

    Attributes:
        total: bytes that all of them may take together.
        is_measured: no `memory_budget` was configured; see `state_budget`.
        available: bytes that the process can still take, the model being loaded and no request
            running; None where the system does not say.
        weights: bytes of the model's weights in its files.
        max_rows: most requests at once.
        can_add_rows: `max_rows` is what was asked for; False where the package allows no more.
        max_context: most tokens of one request.
        fixed_bytes: that a request has before its first token, recurrent state for instance.
        fits: by length, shortest first; the last one is `max_context`.
        full_bytes: of `max_rows` requests of `max_context` tokens.
        longest: most tokens that one request alone can have, `max_context` at most; 0 for none.
        even_context: most tokens that `max_rows` requests can all have, `max_context` at most; 0
            where they cannot have one each.
        one_more: bytes that `total` lacks for one more request of `max_context` tokens, which may
            need one more row, too; 0 where memory does not keep it out.
    """

    total: int
    is_measured: bool
    available: int | None
    weights: int
    max_rows: int
    can_add_rows: bool
    max_context: int
    fixed_bytes: int
    fits: tuple[Fit, ...]
    full_bytes: int
    longest: int
    even_context: int
    one_more: int

    @property
    def is_bounded(self) -> bool:
        """Whether memory is a bound at all; else the system does not say what it has."""
        return self.total < sys.maxsize

    @property
    def spare(self) -> int | None:
        """Bytes that stay free when requests take all of `total`.

        Negative where more is configured than there is: then the system would take memory from
        others, or end the process.
        """
        return None if self.available is None else self.available - self.total


def plan_memory(
    capacity: Capacity,
    max_context: int,
    *,
    weights: int,
    available: int | None,
    is_measured: bool,
    can_add_rows: bool = True,
) -> MemoryPlan:
    """Computes the plan.

    Args:
        capacity: what requests share.
        max_context: most tokens of one request, at least 1.
        weights: see `MemoryPlan`.
        available: see `MemoryPlan`.
        is_measured: see `MemoryPlan`.
        can_add_rows: see `MemoryPlan`.
    """
    bytes_of, total, max_rows = capacity.bytes_of, capacity.total, capacity.max_rows
    lengths = [*(length for length in _LENGTHS if length < max_context), max_context]
    fits = tuple(_fit(length, capacity) for length in lengths)
    full = fits[-1]
    lacks = bytes_of([max_context] * (full.at_once + 1)) - total
    return MemoryPlan(
        total=total,
        is_measured=is_measured,
        available=available,
        weights=weights,
        max_rows=max_rows,
        can_add_rows=can_add_rows,
        max_context=max_context,
        fixed_bytes=bytes_of([0]),
        fits=fits,
        full_bytes=bytes_of([max_context] * max_rows),
        longest=_most(max_context, lambda length: bytes_of([length]) <= total),
        even_context=_most(max_context, lambda length: bytes_of([length] * max_rows) <= total),
        one_more=max(0, lacks),
    )


def knobs(plan: MemoryPlan) -> tuple[Knob, ...]:
    """Returns the options that let more requests run at once, and only those that would.

    Of more memory than there is nothing is offered.
    """
    if plan.spare is not None and plan.spare < 0:
        return ()
    found: list[Knob] = []
    roomy = [fit for fit in plan.fits if fit.bound is Bound.ROWS and plan.can_add_rows]
    if roomy:
        fit = roomy[-1]
        count = f"{fit.by_memory:,}" + (" and more" if fit.by_memory >= MOST_ROWS else "")
        effect = f"memory has room for {count} requests of {fit.tokens:,} tokens"
        found.append(Knob("max_rows", fit.by_memory, effect))
    if not plan.one_more or (plan.fits[-1].bound is Bound.BOTH and not plan.can_add_rows):
        return tuple(found)
    found.append(_memory_knob(plan))
    if 0 < plan.even_context < plan.max_context:
        verb = "fits" if plan.max_rows == 1 else "fit at once"
        effect = f"{_requests(plan.max_rows)} of at most {plan.even_context:,} tokens {verb}"
        found.append(Knob("max_context", plan.even_context, effect))
    if plan.is_measured and 2 * plan.one_more <= plan.weights:
        effect = f"half of the weights' {format_bytes(plan.weights)} would be room enough for that"
        found.append(Knob("precision", None, effect))
    return tuple(found)


def _memory_knob(plan: MemoryPlan) -> Knob:
    """Returns the budget as a knob where it can be raised; else what is missing."""
    full = plan.fits[-1]
    row = ", and one more row," if full.bound is Bound.BOTH else ""
    fit = f"for {_requests(full.at_once + 1)} of {full.tokens:,} tokens at once"
    more, needed = format_bytes(plan.one_more), plan.total + plan.one_more
    if not plan.is_measured and (plan.available is None or needed <= state_budget(plan.available)):
        return Knob("memory_budget", needed, f"{more} more{row} {fit}")
    return Knob("memory", None, f"{more} more than this process can take{row} {fit}")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _fit(length: int, capacity: Capacity) -> Fit:
    rows, bytes_of = capacity.max_rows, capacity.bytes_of
    by_memory = _most(
        max(MOST_ROWS, rows + 1), lambda count: bytes_of([length] * count) <= capacity.total
    )
    if by_memory == rows:
        bound = Bound.BOTH
    else:
        bound = Bound.ROWS if by_memory > rows else Bound.MEMORY
    return Fit(length, bytes_of([length]), min(by_memory, rows), bound, by_memory)


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number from 1 to `limit` that fits, 0 if none does.

    Where a number fits, so do all smaller ones.
    """
    if fits(limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
