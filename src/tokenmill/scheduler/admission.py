"""Whether a request may run: a pure function of what it can come to need and what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BytesOf = Callable[[Sequence[int]], int]
"""State bytes that sequences of these lengths take together; see `BackendLimits.bytes`."""


class Demand(NamedTuple):
    """What a request can come to need.

    Attributes:
        prompt_tokens: at least 1.
        max_tokens: most completion tokens, at least 1.
        is_open: the request named no `max_tokens`, so that it holds memory in steps of
            `Capacity.growth_tokens` instead of all that it may use.
    """

    prompt_tokens: int
    max_tokens: int
    is_open: bool

    @property
    def length(self) -> int:
        """Most tokens that its sequence can have."""
        return self.prompt_tokens + self.max_tokens


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a model's requests share.

    Attributes:
        bytes_of: see `BytesOf`.
        total: bytes that this model could hold with nothing running.
        max_rows: most requests that run at once.
        growth_tokens: what an open request is given room for at a time.
    """

    bytes_of: BytesOf
    total: int
    max_rows: int
    growth_tokens: int = 128


class Admitted(NamedTuple):
    """It runs now.

    Attributes:
        length: tokens to hold memory for.
    """

    length: int


class Capped(NamedTuple):
    """It can run with a lower ceiling: what was asked for would never fit.

    Attributes:
        max_tokens: most completion tokens that fit, at least 1.
    """

    max_tokens: int


class Queued(NamedTuple):
    """It waits, and holds nothing.

    Attributes:
        position: requests before it.
        why: "rows" or "memory".
    """

    position: int
    why: str


class Rejected(NamedTuple):
    """It can never run here.

    Attributes:
        why: in one sentence.
        needed: bytes for its prompt and one token.
        available: bytes that there are with nothing else running.
        knob: the option that would help.
    """

    why: str
    needed: int
    available: int
    knob: str


def judge(demand: Demand, capacity: Capacity) -> Capped | Rejected | None:
    """Returns whether the request could ever run as it was asked: None where it could.

    Judged against an empty engine, so that the answer does not depend on what runs.
    """
    if _fits(demand.length, capacity):
        return None
    least = demand.prompt_tokens + 1
    if not _fits(least, capacity):
        needed = capacity.bytes_of([least])
        return Rejected(
            f"{demand.prompt_tokens:,} tokens of prompt and one of reply need {needed:,} bytes of "
            f"state, and there are {capacity.total:,}",
            needed,
            capacity.total,
            "memory_budget",
        )
    # The largest length that fits; bytes grow with the length in every layout.
    low, high = least, demand.length
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(middle, capacity):
            low = middle
        else:
            high = middle
    return Capped(low - demand.prompt_tokens)


def starting_length(demand: Demand, known_tokens: int, capacity: Capacity) -> int:
    """Returns the tokens that a request holds memory for when it starts, or starts again.

    Args:
        demand: what it can come to need.
        known_tokens: of the prompt, and of the reply where it was parked.
        capacity: see `Capacity`.
    """
    if not demand.is_open:
        return demand.length
    return min(demand.length, known_tokens + capacity.growth_tokens)


def admit(
    length: int, running: Sequence[int], position: int, available: int, capacity: Capacity
) -> Admitted | Queued:
    """Decides about a request that could run in an empty engine.

    Args:
        length: tokens to hold memory for.
        running: the lengths that running requests hold memory for.
        position: requests that wait before it.
        available: bytes that this model's running requests may hold now.
        capacity: see `Capacity`.
    """
    if len(running) >= capacity.max_rows:
        return Queued(position, "rows")
    if position or capacity.bytes_of([*running, length]) > available:
        return Queued(position, "memory")
    return Admitted(length)


def _fits(length: int, capacity: Capacity) -> bool:
    return capacity.bytes_of([length]) <= capacity.total
