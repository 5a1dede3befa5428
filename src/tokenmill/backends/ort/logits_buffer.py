"""Where logits are written: one array, reused by every step, grown when a step needs more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT_ELEMENTS = 2**24


class LogitsBuffer:
    """Gives out parts of one array; `start` begins a step and makes earlier parts invalid.

    A step that needs much more than usual (all positions of a long prompt) gets an array that
    the next ordinary step drops.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._array = np.empty(0, dtype)
        self._used = 0

    def start(self, elements: int) -> None:
        """Makes room for the elements of one step."""
        size = len(self._array)
        if size < elements or size > max(4 * elements, _KEPT_ELEMENTS):
            self._array = np.empty(elements, self._array.dtype)
        self._used = 0

    def take(self, *shape: int) -> NDArray[Any]:
        """Returns the next part, uninitialised."""
        stop = self._used + math.prod(shape)
        assert stop <= len(self._array), "start() was given the elements of all calls"
        part = self._array[self._used : stop].reshape(shape)
        self._used = stop
        return part
