"""Short ways to drive a backend in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.base import DecodeBackend
from tokenmill.core.ids import SequenceId
from tokenmill.core.rows import Logits, Row

LogitsArray = NDArray[np.float32]


def step(
    backend: DecodeBackend,
    sequence: SequenceId,
    tokens: Sequence[int],
    logits: Logits | Sequence[int] = Logits.LAST,
) -> LogitsArray:
    """Runs and commits one row; returns a copy of its logits."""
    output = backend.run([Row(sequence, tokens, logits=logits)]).rows[0]
    if output.error is not None:
        raise output.error
    assert output.logits is not None
    kept = output.logits.copy()
    backend.commit(sequence, len(tokens))
    return kept


def feed(
    backend: DecodeBackend, sequence: SequenceId, tokens: Sequence[int], chunk: int
) -> LogitsArray:
    """Feeds tokens in chunks that leave no single token over; returns the logits of all."""
    parts: list[LogitsArray] = []
    start = 0
    while start < len(tokens):
        stop = min(start + chunk, len(tokens))
        if len(tokens) - stop == 1:
            stop += 1
        parts.append(step(backend, sequence, tokens[start:stop], Logits.ALL))
        start = stop
    return np.concatenate(parts)


def solo(backend: DecodeBackend, past: Sequence[int], tokens: Sequence[int]) -> LogitsArray:
    """Returns the logits of all `tokens` after `past`, computed in a sequence of their own."""
    sequence = backend.open()
    if past:
        step(backend, sequence, past, Logits.NONE)
    logits = step(backend, sequence, tokens, Logits.ALL)
    backend.close(sequence)
    return logits


def random_tokens(n: int, vocab: int = 96, seed: int = 0) -> list[int]:
    """Returns n token ids below `vocab`."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, n)]
