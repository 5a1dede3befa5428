"""Whether two computations of the same logits agree; for probes at load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.core.errors import BackendError

_SINGLE, _HALF = 1e-3, 2e-2
"""Shares of the largest logit that results may differ by. A token at a wrong position, or one that
sees what it must not, moves logits by a multiple of it; sums in another order by a fraction."""
_TIMES_NOISE = 4
_FATAL = 4
"""ONNX Runtime's highest level of severity."""


def probe_tokens(n: int, vocab_size: int, seed: int) -> list[int]:
    """Returns n token ids, spread over the vocabulary."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab_size, n)]


def silent() -> onnxruntime.RunOptions:
    """Returns options for calls that may fail: the runtime writes no error to the terminal."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    return options


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Returns the largest difference; infinity where one is not a number."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max(initial=0.0))


def attempt(compute: Callable[[], float]) -> float:
    """Returns what `compute` gives, a distance; infinity where the runtime refuses."""
    try:
        return compute()
    except BackendError:
        return float("inf")


class Tolerance:
    """What may lie between two ways to compute the same.

    Args:
        logits: ordinary ones of the model, for their size.
        dtype: the coarsest type in which state or logits are kept.
    """

    def __init__(self, logits: NDArray[np.float32], dtype: np.dtype[Any]) -> None:
        share = _HALF if dtype.itemsize < np.dtype(np.float32).itemsize else _SINGLE
        self._least = share * float(np.abs(logits).max(initial=1e-6))

    def allows(self, distance: float, noise: float = 0.0) -> bool:
        """Whether the distance is small.

        Args:
            distance: between the two.
            noise: of a way that is known to be right; quantised activations have much of it.
        """
        if not math.isfinite(distance):
            return False
        return distance <= self._least + _TIMES_NOISE * noise
