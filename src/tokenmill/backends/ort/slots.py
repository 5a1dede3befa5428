"""Key and value memory: one row per open sequence, in one buffer per layer and kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.device_memory import PAGE_BYTES, HostMemory
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import AttentionState

_DTYPES = {"float32", "float16", "int8", "uint8"}

KINDS = ("key", "value")


class _Buffer(NamedTuple):
    """One tensor of all rows.

    Attributes:
        kind, layer: what it holds.
        array: [max_rows, heads, capacity, dim].
        start: its first byte in the memory.
        strip: bytes of one head of one row.
        token: bytes of one token of one head.
    """

    kind: str
    layer: int
    array: NDArray[Any]
    start: int
    strip: int
    token: int


class Slots:
    """The rows' memory. Who owns a row is for the caller to know.

    A row's strips, one per head, start on page boundaries, so that the pages behind a row's last
    token can be given back one by one.

    Args:
        attention: the geometry of each layer.
        max_rows: rows in all.
        max_context: most tokens in a row.
    """

    def __init__(
        self, attention: Sequence[AttentionState], max_rows: int, max_context: int
    ) -> None:
        self.max_rows, self.max_context = max_rows, max_context
        token_bytes = [layer.head_dim * _dtype(layer).itemsize for layer in attention]
        multiple = math.lcm(*(PAGE_BYTES // math.gcd(PAGE_BYTES, size) for size in token_bytes))
        self.capacity = -(-max_context // multiple) * multiple
        total = sum(
            2 * max_rows * layer.num_kv_heads * self.capacity * size
            for layer, size in zip(attention, token_bytes, strict=True)
        )
        self.memory = HostMemory(total)
        self.buffers: list[_Buffer] = []
        start = 0
        for layer, size in zip(attention, token_bytes, strict=True):
            shape = (max_rows, layer.num_kv_heads, self.capacity, layer.head_dim)
            for kind in KINDS:
                array = self.memory.view(start, shape, _dtype(layer))
                strip = self.capacity * size
                self.buffers.append(_Buffer(kind, layer.layer, array, start, strip, size))
                start += array.nbytes
        self.touched = [0] * max_rows
        """Tokens of each row whose memory may be committed."""

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

    def read(self, row: int, start: int, stop: int) -> Iterator[tuple[str, int, NDArray[Any]]]:
        """Yields (kind, layer, copy [heads, tokens, dim]) of every buffer."""
        for buffer in self.buffers:
            yield buffer.kind, buffer.layer, buffer.array[row, :, start:stop].copy()

    def write(self, row: int, start: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Puts arrays [heads, tokens, dim] in the order of `buffers` at token `start`."""
        for buffer, array in zip(self.buffers, arrays, strict=True):
            stop = start + array.shape[1]
            self.touch(row, stop)
            buffer.array[row, :, start:stop] = array

    def committed_bytes(self, lengths: Sequence[int]) -> int:
        """Returns the memory that rows of these lengths commit, in whole pages."""
        return sum(
            buffer.array.shape[1] * -(-length * buffer.token // PAGE_BYTES) * PAGE_BYTES
            for buffer in self.buffers
            for length in lengths
        )

    def release(self) -> None:
        """Gives all memory back at once."""
        for row in range(self.max_rows):
            self.shrink(row, 0)


def _dtype(layer: AttentionState) -> np.dtype[Any]:
    if layer.dtype not in _DTYPES:
        raise UnsupportedModel(
            f"attention state of type {layer.dtype} in layer {layer.layer}",
            why=f"this backend keeps {', '.join(sorted(_DTYPES))}",
        )
    return np.dtype(layer.dtype)
