"""What one step computes: a pure function of the running sequences and a token budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.sequence import Sequence

_LEAST_CHUNK = 16
"""Prompt tokens that a step always has room for, so that a prompt gets on."""


class PlannedRow(NamedTuple):
    """A sequence's part of a step.

    Attributes:
        sequence: whose tokens are computed.
        num_tokens: how many of its pending tokens, from the first one on.
        samples: whether the row reaches the last known token, so that the next one is drawn.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool


def plan_step(running: Iterable[Sequence], prefill_tokens: int) -> list[PlannedRow]:
    """Chooses the rows of the next step, first come, first served.

    Every decoding sequence takes part with its one token. Then prompts, in order, as far as the
    budget of prompt tokens reaches; the first one always gets a chunk.

    Args:
        running: in order of arrival.
        prefill_tokens: most prompt tokens in a step, at least 2.
    """
    rows: list[PlannedRow] = []
    left = prefill_tokens
    for sequence in running:
        pending = sequence.num_pending_tokens
        if not sequence.is_prefilling:
            rows.append(PlannedRow(sequence, pending, samples=True))
            continue
        if left < min(pending, 2):
            continue
        count = chunk_length(pending, left)
        rows.append(PlannedRow(sequence, count, samples=count == pending))
        left -= count
    return rows


def prefill_budget(
    costs: StepCosts, decode_rows: int, prefill_tokens: int, max_stretch: float
) -> int:
    """Returns how many prompt tokens a step may hold beside rows that decode.

    Args:
        costs: what was learnt of this model on this machine.
        decode_rows: at least 1.
        prefill_tokens: never more than these; also the answer while nothing is known.
        max_stretch: how many times longer the step may become, above 1.
    """
    alone = costs.decode_seconds(decode_rows)
    if alone is None:
        return prefill_tokens
    tokens = costs.prefill_tokens_within((max_stretch - 1) * alone)
    if tokens is None:
        return prefill_tokens
    return min(prefill_tokens, max(_LEAST_CHUNK, tokens))


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
