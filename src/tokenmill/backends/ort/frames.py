"""State that is never changed: what one call of the runtime gave, for all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.device_memory import HostMemory
from tokenmill.backends.ort.pages import PageGeometry

_STEP_TOKENS = 64
"""Memory is laid out for a multiple of this, so that it serves as many steps."""
_MAX_SLACK = 2
"""Memory is used again for what needs at least one part in so many of it."""


class Frame:
    """Keys and values of several rows that end together.

    Attributes:
        arrays: in the order of the geometry, [rows, heads, tokens, dim] each, contiguous.
        rows, tokens: their sizes.
        memory: what the arrays lie in.
        users: who holds the frame.
    """

    def __init__(
        self, geometry: Sequence[PageGeometry], rows: int, tokens: int, memory: HostMemory
    ) -> None:
        self.rows, self.tokens, self.memory, self.users = rows, tokens, memory, 0
        self.arrays: list[NDArray[Any]] = []
        room = -(-tokens // _STEP_TOKENS) * _STEP_TOKENS
        start = 0
        for like in geometry:
            shape = (rows, like.heads, tokens, like.dim)
            array = memory.view(start, shape, like.dtype) if tokens else np.empty(shape, like.dtype)
            self.arrays.append(array)
            start += rows * like.heads * room * like.dim * like.dtype.itemsize


class FramePool:
    """Makes frames, counts who holds them, and uses the memory of those that nobody holds again.

    Two frames alternate while a batch decodes, past and present, so that each finds the memory of
    the last but one. Memory in reserve is never more than what frames take.

    Args:
        geometry: of every frame.
    """

    def __init__(self, geometry: Sequence[PageGeometry]) -> None:
        self.geometry = tuple(geometry)
        self._token_bytes = sum(
            like.heads * like.dim * like.dtype.itemsize for like in self.geometry
        )
        self._live: list[Frame] = []
        self._spare: list[HostMemory] = []

    def frame_bytes(self, rows: int, tokens: int) -> int:
        """Returns the memory of a frame."""
        return rows * -(-tokens // _STEP_TOKENS) * _STEP_TOKENS * self._token_bytes

    @property
    def live_bytes(self) -> int:
        """Memory of all frames that are held."""
        return sum(frame.memory.nbytes for frame in self._live)

    @property
    def spare_bytes(self) -> int:
        """Memory in reserve."""
        return sum(memory.nbytes for memory in self._spare)

    def take(self, rows: int, tokens: int) -> Frame:
        """Returns a frame with one user, its arrays uninitialised."""
        needed = self.frame_bytes(rows, tokens)
        fitting = [
            memory
            for memory in self._spare
            if needed <= memory.nbytes <= _MAX_SLACK * max(needed, 1)
        ]
        if fitting:
            memory = min(fitting, key=lambda spare: spare.nbytes)
            self._spare.remove(memory)
        else:
            memory = HostMemory(needed)
        frame = Frame(self.geometry, rows, tokens, memory)
        frame.users = 1
        self._live.append(frame)
        return frame

    def hold(self, frame: Frame) -> None:
        """Adds a user."""
        frame.users += 1

    def drop(self, frame: Frame) -> None:
        """Ends one use; the last one gives the memory back."""
        assert frame.users > 0, "a frame is dropped as often as it is taken or held"
        frame.users -= 1
        if frame.users == 0:
            self._live.remove(frame)
            self._spare.append(frame.memory)
            live = self.live_bytes
            while self._spare and self.spare_bytes > live:
                self._spare.pop(0)

    def check_integrity(self, users: int) -> None:
        """Raises AssertionError unless the frames are held by so many in all."""
        held = sum(frame.users for frame in self._live)
        assert held == users, f"frames count {held} users, and there are {users}"
        assert all(frame.users > 0 for frame in self._live), "a frame lives on for nobody"
        assert self.spare_bytes <= self.live_bytes, "more memory in reserve than in use"
