"""What chunks of prompts take, learnt from those that were computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FRESH = 0.5
"""Weight of a new observation against what was known of its kind."""
_MOST_KINDS = 64
_SCALES: NDArray[np.float64] = np.array([1.0, 1e3, 64.0, 64e3])
"""Usual sizes of the terms, so that none is favoured where several explain the same."""


class Chunk(NamedTuple):
    """A part of a prompt in one step.

    Attributes:
        tokens: new ones, at least 1.
        past: tokens of its sequence before them.
    """

    tokens: int
    past: int


class PrefillCosts:
    """Predicts seconds of chunks, of a model of which nothing is known.

    A chunk costs something by itself (weights are read), something for its past (keys are
    prepared), something for each token, and something for each token and each one that it looks
    back at: seconds = a + b past + c tokens + d tokens (past + tokens / 2), none of them
    negative. Observations of one size and past are averaged into one, so that what was seen
    long ago still tells how costs grow with size, while all of late are of one size.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], tuple[NDArray[np.float64], float]] = {}
        self._count = 0
        self._factors: NDArray[np.float64] | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict from."""
        return self._count >= 2

    def observe(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Learns from chunks that were computed in one step."""
        terms = _terms(chunks)
        tokens = sum(chunk.tokens for chunk in chunks)
        longest = max(chunk.past for chunk in chunks)
        kind = (len(chunks), int(2 * np.log2(tokens)), longest // 256)
        known = self._seen.pop(kind, None)
        if known is not None:
            terms = known[0] + _FRESH * (terms - known[0])
            seconds = known[1] + _FRESH * (seconds - known[1])
        self._seen[kind] = terms, seconds  # the latest is the last
        if len(self._seen) > _MOST_KINDS:
            del self._seen[next(iter(self._seen))]
        self._count += 1
        self._factors = None

    def seconds(self, chunks: Sequence[Chunk]) -> float:
        """Predicts a step with these chunks; to be asked where `is_known`."""
        return float(_terms(chunks) @ self._fit())

    def tokens_within(self, seconds: float, past: int, limit: int) -> int:
        """Returns how many tokens of one prompt fit into the time, at most `limit`."""
        low, high = 0, limit + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds([Chunk(middle, past)]) <= seconds * (1 + 1e-9):
                low = middle
            else:
                high = middle
        return low

    def _fit(self) -> NDArray[np.float64]:
        """Returns the four terms' factors: least squares of relative errors, none negative."""
        if self._factors is not None:
            return self._factors
        rows: NDArray[np.float64] = np.array([terms for terms, _ in self._seen.values()])
        times = np.array([max(seconds, 1e-9) for _, seconds in self._seen.values()])
        weighted = rows / times[:, None]
        used = list(range(len(_SCALES)))
        found: NDArray[np.float64] = np.zeros(len(_SCALES))
        while used:
            some, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(times)), rcond=1e-6)
            if some.min() >= 0:
                found[used] = some
                break
            used.pop(int(some.argmin()))
        self._factors = found
        return found


def _terms(chunks: Sequence[Chunk]) -> NDArray[np.float64]:
    """Returns the sizes that the four factors belong to."""
    sizes: NDArray[np.float64] = np.zeros(len(_SCALES))
    for tokens, past in chunks:
        sizes += (1, past, tokens, tokens * (past + tokens / 2))
    return np.divide(sizes, _SCALES, dtype=np.float64)
