"""What one step computes: a pure function of the running sequences and a token budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.sequence import Sequence

LEAST_CHUNK = 16
"""Fewer prompt tokens in a step are not worth what they cost by themselves."""
BURST = 5
"""How many times the bound on a step's length may be exceeded now and then."""
BURST_PERIOD = 12
"""Steps from one such exception to the next: so that nine of ten tokens are within the bound."""
_UNMEASURED_CHUNK = 64
"""Prompt tokens beside decoding rows while nothing is known of what they cost."""


class PlannedRow(NamedTuple):
    """A sequence's part of a step.

    Attributes:
        sequence: whose tokens are computed.
        num_tokens: how many of its pending tokens, from the first one on.
        samples: whether the row reaches the last known token, so that the next one is drawn.
        is_prefill: whether these are a chunk of a prompt, or count as one.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool
    is_prefill: bool


def plan_step(
    running: Iterable[Sequence], prefill_tokens: int, *, replays_in_chunks: bool = False
) -> list[PlannedRow]:
    """Chooses the rows of the next step, first started, first served.

    Every decoding sequence takes part with one token; one that computes its reply again does not
    draw before it is at the end. Then prompts, in order, as far as the budget of prompt tokens
    reaches.

    Args:
        running: in the order in which they started.
        prefill_tokens: most prompt tokens in a step: 0 for none, else at least 2.
        replays_in_chunks: replies that are computed again count as prompts.
    """
    rows: list[PlannedRow] = []
    left = prefill_tokens
    for sequence in running:
        known = len(sequence.tokens)
        whole = known if replays_in_chunks else sequence.num_prompt_tokens
        pending = whole - sequence.num_computed_tokens
        if pending <= 1 and not sequence.is_prefilling:
            samples = sequence.num_pending_tokens == 1
            rows.append(PlannedRow(sequence, 1, samples, is_prefill=False))
            continue
        if left < min(pending, 2):
            continue
        count = chunk_length(pending, left)
        samples = count == sequence.num_pending_tokens
        rows.append(PlannedRow(sequence, count, samples, is_prefill=True))
        left -= count
    return rows


def prefill_budget(
    costs: StepCosts,
    decode_rows: int,
    past: int,
    prefill_tokens: int,
    *,
    max_stretch: float,
    quiet_steps: int,
) -> int:
    """Returns how many prompt tokens a step may hold beside rows that decode.

    While a chunk worth its while fits into the bound, each step may have one. Where none does,
    since the past of a prompt makes even short chunks slow, most steps have none, and a few have
    a longer one: then nearly all tokens come as if nobody else were there, and the prompt gets
    on faster than with many short chunks, each of which would cost its past again.

    Args:
        costs: what was learnt of this model on this machine.
        decode_rows: at least 1.
        past: tokens computed of the first prompt in line.
        prefill_tokens: never more than these.
        max_stretch: how many times longer the step may become, above 1; every
            `BURST_PERIOD`-th step up to `BURST` times that.
        quiet_steps: how many steps before this one had no prompt tokens.
    """
    alone = costs.decode_seconds(decode_rows)
    if alone is None:
        return prefill_tokens
    most = prefill_tokens
    tokens = costs.prefill_tokens_within((max_stretch - 1) * alone, past, most)
    if tokens is None:
        return min(prefill_tokens, _UNMEASURED_CHUNK)
    if tokens >= min(LEAST_CHUNK, prefill_tokens):
        return tokens
    if quiet_steps + 1 < BURST_PERIOD:
        return 0
    burst = costs.prefill_tokens_within((BURST * max_stretch - 1) * alone, past, most)
    assert burst is not None, "what is known stays known"
    return min(prefill_tokens, max(LEAST_CHUNK, burst))


def chunk_length(pending: int, limit: int) -> int:
    """Returns how many of `pending` prompt tokens go into a chunk of at most `limit`.

    Never leaves a single token over: one token alone is computed in another numerical class than
    several (see `Numerics.chunk_invariant_from`). So a chunk may be one shorter than the limit
    or, where the limit is 2, one longer.

    Args:
        pending: at least 1.
        limit: at least 2, or at least `pending`.
    """
    if pending <= limit:
        return pending
    if pending - limit != 1:
        return limit
    return limit - 1 if limit > 2 else limit + 1
