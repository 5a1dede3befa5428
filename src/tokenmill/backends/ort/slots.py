"""Key and value memory: one row per open sequence, in one buffer per layer and kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tokenmill.backends.ort.device_memory import PAGE_BYTES, HostMemory
from tokenmill.backends.ort.pages import HEADS_TOKENS_DIM, PageGeometry
from tokenmill.backends.ort.state_arrays import state_geometry
from tokenmill.package.model_package import AttentionState


class _Buffer(NamedTuple):
    """One tensor of all rows.

    Attributes:
        array: [max_rows, heads, capacity, dim].
        start: its first byte in the memory.
        strip: bytes of one head of one row.
        token: bytes of one token of one head.
    """

    array: NDArray[Any]
    start: int
    strip: int
    token: int


class Slots:
    """The rows' memory. Who owns a row is for the caller to know.

    A row's strips, one per head, start on page boundaries where the capacity is free to choose,
    so that the pages behind a row's last token can be given back one by one.

    Args:
        attention: the geometry of each layer.
        max_rows: rows in all.
        max_context: most tokens in a row.
        capacity: tokens that a row is laid out for; None rounds `max_context` up to whole pages.
        layout: see `pages`.
    """

    def __init__(
        self,
        attention: Sequence[AttentionState],
        max_rows: int,
        max_context: int,
        capacity: int | None = None,
        layout: str = HEADS_TOKENS_DIM,
    ) -> None:
        self.max_rows, self.max_context = max_rows, max_context
        self.geometry = state_geometry(attention, layout)
        if capacity is None:
            token_bytes = [like.dim * like.dtype.itemsize for like in self.geometry]
            multiple = math.lcm(*(PAGE_BYTES // math.gcd(PAGE_BYTES, size) for size in token_bytes))
            capacity = -(-max_context // multiple) * multiple
        self.capacity = capacity
        self.memory, self.buffers = _lay_out(self.geometry, max_rows, capacity)
        self._strips = Counter[int]()
        """Strips of a row, by the bytes of a token in them."""
        for like in self.geometry:
            self._strips[like.dim * like.dtype.itemsize] += like.heads
        self.touched = [0] * max_rows
        """Tokens of each row whose memory may be committed."""

    def lay_out(self, capacity: int) -> None:
        """Moves all rows into memory of another capacity; what does not fit is forgotten.

        Views of `buffers` that were taken before are of no use afterwards.
        """
        memory, buffers = _lay_out(self.geometry, self.max_rows, capacity)
        self.touched = [min(tokens, capacity) for tokens in self.touched]
        for old, new in zip(self.buffers, buffers, strict=True):
            for row, tokens in enumerate(self.touched):
                new.array[row, :, :tokens] = old.array[row, :, :tokens]
            # Buffer by buffer, so that at no time all state is there twice.
            self.memory.give_back(old.start, old.start + old.array.nbytes)
        self.capacity, self.memory, self.buffers = capacity, memory, buffers

    def touch(self, row: int, length: int) -> None:
        """Notes that the row's first `length` tokens are being written."""
        self.touched[row] = max(self.touched[row], length)

    def shrink(self, row: int, length: int) -> None:
        """Gives back the pages behind the row's first `length` tokens."""
        touched = self.touched[row]
        if touched <= length:
            return
        for buffer in self.buffers:
            heads = buffer.array.shape[1]
            first = buffer.start + row * heads * buffer.strip
            if length == 0:
                self.memory.give_back(first, first + heads * buffer.strip)
                continue
            if -(-length * buffer.token // PAGE_BYTES) == -(-touched * buffer.token // PAGE_BYTES):
                continue
            for head in range(heads):
                strip = first + head * buffer.strip
                # Up to the strip's end: `touched` may lie in the middle of its last page.
                self.memory.give_back(strip + length * buffer.token, strip + buffer.strip)
        self.touched[row] = length

    def exchange(self, a: int, a_length: int, b: int, b_length: int) -> None:
        """Swaps the first tokens of two rows; lengths of 0 are empty rows."""
        self.touch(a, b_length)
        self.touch(b, a_length)
        for buffer in self.buffers:
            array = buffer.array
            kept = array[b, :, :b_length].copy() if b_length else None
            array[b, :, :a_length] = array[a, :, :a_length]
            if kept is not None:
                array[a, :, :b_length] = kept
        self.shrink(a, b_length)
        self.shrink(b, a_length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of one row to another."""
        self.touch(target, length)
        for buffer in self.buffers:
            buffer.array[target, :, :length] = buffer.array[source, :, :length]

    def read(self, row: int, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Yields a copy [heads, tokens, dim] of every buffer."""
        for buffer in self.buffers:
            yield buffer.array[row, :, start:stop].copy()

    def write(self, row: int, start: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Puts arrays [heads, tokens, dim] in the order of `buffers` at token `start`."""
        for buffer, array in zip(self.buffers, arrays, strict=True):
            stop = start + array.shape[1]
            self.touch(row, stop)
            buffer.array[row, :, start:stop] = array

    def committed_bytes(self, lengths: Sequence[int]) -> int:
        """Returns the memory that rows of these lengths commit, in whole pages."""
        return sum(
            strips * -(-length * token // PAGE_BYTES) * PAGE_BYTES
            for token, strips in self._strips.items()
            for length in lengths
        )

    def release(self) -> None:
        """Gives all memory back at once."""
        for row in range(self.max_rows):
            self.shrink(row, 0)


def _lay_out(
    geometry: Sequence[PageGeometry], max_rows: int, capacity: int
) -> tuple[HostMemory, list[_Buffer]]:
    sizes = [like.dim * like.dtype.itemsize for like in geometry]
    strips = [capacity * size for size in sizes]
    memory = HostMemory(
        sum(max_rows * like.heads * strip for like, strip in zip(geometry, strips, strict=True))
    )
    buffers: list[_Buffer] = []
    start = 0
    for like, size, strip in zip(geometry, sizes, strips, strict=True):
        array = memory.view(start, (max_rows, like.heads, capacity, like.dim), like.dtype)
        buffers.append(_Buffer(array, start, strip, size))
        start += array.nbytes
    return memory, buffers
