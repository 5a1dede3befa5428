"""Quantised blocks: ggml's kinds in the one form w = scale * (quant - centre) + rest.

`MatMulNBits` computes the first part fast when the centre is 2^(bits-1), and the rest is a small
product with block sums. Every kind below is represented exactly: its values are those that
ggml's own dequantisation gives, up to the rounding of one float32 addition.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class BlockForm(NamedTuple):
    """The shape of a matrix in blocks, without its contents."""

    rows: int
    columns: int
    bits: int
    block_size: int


class Blocks(NamedTuple):
    """A matrix [rows, columns] in blocks along its columns.

    Attributes:
        quants: uint8 [rows, columns], below 2^bits.
        scales: float32 [rows, columns / block_size].
        rest: float32 like scales, added to every weight of its block; None where it is zero.
        bits: 4 or 8.
        block_size: weights in a block, 16 or 32.
    """

    quants: Bytes
    scales: Floats
    rest: Floats | None
    bits: int
    block_size: int

    @property
    def form(self) -> BlockForm:
        """The shape."""
        rows, columns = self.quants.shape
        return BlockForm(rows, columns, self.bits, self.block_size)

    @property
    def centre(self) -> int:
        """The quant that stands for zero."""
        return 1 << (self.bits - 1)

    def take_rows(self, order: NDArray[np.intp]) -> Blocks:
        """Returns the rows in another order."""
        rest = None if self.rest is None else self.rest[order]
        return self._replace(quants=self.quants[order], scales=self.scales[order], rest=rest)

    def packed(self) -> Bytes:
        """Returns the quants as `MatMulNBits` wants them: uint8 [rows, blocks, bytes a block]."""
        rows, columns = self.quants.shape
        quants = self.quants
        if self.bits == 4:
            quants = quants[:, 0::2] | (quants[:, 1::2] << np.uint8(4))
        return np.ascontiguousarray(quants).reshape(rows, columns // self.block_size, -1)

    def dequantise(self) -> Floats:
        """Returns the weights, float32 [rows, columns]."""
        rows, columns = self.quants.shape
        values = self.quants.reshape(rows, -1, self.block_size).astype(np.float32)
        values -= self.centre
        values *= self.scales[..., None]
        if self.rest is not None:
            values += self.rest[..., None]
        return values.reshape(rows, columns)


def stack(parts: Sequence[Blocks]) -> Blocks:
    """Puts matrices of the same columns, bits and block size under one another."""
    rest: Floats | None = None
    if any(part.rest is not None for part in parts):
        rest = np.concatenate(
            [np.zeros_like(p.scales) if p.rest is None else p.rest for p in parts]
        )
    return parts[0]._replace(
        quants=np.concatenate([part.quants for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        rest=rest,
    )


def _half(raw: Bytes) -> Floats:
    """Reads bytes [..., 2n] as n float16 values."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _fields(raw: Bytes, *sizes: int) -> list[Bytes]:
    """Cuts blocks of bytes [n, size] into fields of these sizes."""
    return np.split(raw, np.cumsum(sizes)[:-1].tolist(), axis=-1)


def _shifted(raw: Bytes, group: int, shifts: Sequence[int], mask: int) -> Bytes:
    """Unpacks small numbers that lie `group` bytes apart: [n, b] -> [n, b * len(shifts)]."""
    n = raw.shape[0]
    steps = np.array(shifts, dtype=np.uint8).reshape(1, 1, -1, 1)
    return ((raw.reshape(n, -1, 1, group) >> steps) & np.uint8(mask)).reshape(n, -1)


def _high_bits(raw: Bytes) -> Bytes:
    """Unpacks the fifth bits of Q5_0 and Q5_1: [n, 4] -> [n, 32]."""
    return np.unpackbits(raw, axis=-1, bitorder="little")


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """Unpacks the 6-bit scales and minima of Q4_K and Q5_K: [n, 12] -> two of [n, 8]."""
    low, minimum, high = _fields(raw, 4, 4, 4)
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=-1)
    minima = np.concatenate([minimum & 63, (high >> 4) | ((minimum >> 2) & 48)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


class _Parts(NamedTuple):
    """What a kind's blocks decode to.

    Attributes:
        quants: uint8 [n, weights a block].
        scales: float32 [n, scales a block].
        rest: like scales, or None.
    """

    quants: Bytes
    scales: Floats
    rest: Floats | None = None


def _q4_0(raw: Bytes) -> _Parts:
    d, qs = _fields(raw, 2, 16)
    return _Parts(_shifted(qs, 16, (0, 4), 15), _half(d))


def _q4_1(raw: Bytes) -> _Parts:
    d, m, qs = _fields(raw, 2, 2, 16)
    scale = _half(d)
    return _Parts(_shifted(qs, 16, (0, 4), 15), scale, _half(m) + 8 * scale)


def _q5_0(raw: Bytes) -> _Parts:
    d, qh, qs = _fields(raw, 2, 4, 16)
    quants = _shifted(qs, 16, (0, 4), 15) | (_high_bits(qh) << np.uint8(4))
    return _Parts(quants + np.uint8(112), _half(d))


def _q5_1(raw: Bytes) -> _Parts:
    d, m, qh, qs = _fields(raw, 2, 2, 4, 16)
    quants = _shifted(qs, 16, (0, 4), 15) | (_high_bits(qh) << np.uint8(4))
    scale = _half(d)
    return _Parts(quants + np.uint8(112), scale, _half(m) + 16 * scale)


def _q8_0(raw: Bytes) -> _Parts:
    d, qs = _fields(raw, 2, 32)
    return _Parts(qs ^ np.uint8(128), _half(d))


def _q2_k(raw: Bytes) -> _Parts:
    scales, qs, d, dmin = _fields(raw, 16, 64, 2, 2)
    scale = _half(d) * (scales & 15).astype(np.float32)
    rest = 2 * scale - _half(dmin) * (scales >> 4).astype(np.float32)
    return _Parts(_shifted(qs, 32, (0, 2, 4, 6), 3) + np.uint8(6), scale, rest)


def _q3_k(raw: Bytes) -> _Parts:
    hmask, qs, scales, d = _fields(raw, 32, 64, 12, 2)
    low, high = _fields(scales, 8, 4)
    six = _shifted(low, 8, (0, 4), 15) | (_shifted(high, 4, (0, 2, 4, 6), 3) << np.uint8(4))
    scale = _half(d) * (six.astype(np.float32) - 32)
    quants = _shifted(qs, 32, (0, 2, 4, 6), 3) | (_shifted(hmask, 32, range(8), 1) << np.uint8(2))
    return _Parts(quants + np.uint8(4), scale)


def _q4_k(raw: Bytes) -> _Parts:
    d, dmin, packed, qs = _fields(raw, 2, 2, 12, 128)
    scales, minima = _k_scales(packed)
    scale = _half(d) * scales
    return _Parts(_shifted(qs, 32, (0, 4), 15), scale, 8 * scale - _half(dmin) * minima)


def _q5_k(raw: Bytes) -> _Parts:
    d, dmin, packed, qh, qs = _fields(raw, 2, 2, 12, 32, 128)
    scales, minima = _k_scales(packed)
    scale = _half(d) * scales
    quants = _shifted(qs, 32, (0, 4), 15) | (_shifted(qh, 32, range(8), 1) << np.uint8(4))
    return _Parts(quants + np.uint8(112), scale, 16 * scale - _half(dmin) * minima)


def _q6_k(raw: Bytes) -> _Parts:
    ql, qh, scales, d = _fields(raw, 128, 64, 16, 2)
    quants = _shifted(ql, 64, (0, 4), 15) | (_shifted(qh, 32, (0, 2, 4, 6), 3) << np.uint8(4))
    scale = _half(d) * scales.view(np.int8).astype(np.float32)
    return _Parts(quants + np.uint8(96), scale)


class BlockKind(NamedTuple):
    """How one of ggml's kinds is held.

    Attributes:
        block_bytes: in the file.
        bits, block_size: of the `Blocks`.
        correction: it has a rest.
        decode: bytes [n, block_bytes] to parts.
    """

    block_bytes: int
    bits: int
    block_size: int
    correction: bool
    decode: Callable[[Bytes], _Parts]


BLOCK_KINDS = {
    "Q4_0": BlockKind(18, 4, 32, False, _q4_0),
    "Q4_1": BlockKind(20, 4, 32, True, _q4_1),
    "Q5_0": BlockKind(22, 8, 32, False, _q5_0),
    "Q5_1": BlockKind(24, 8, 32, True, _q5_1),
    "Q8_0": BlockKind(34, 8, 32, False, _q8_0),
    "Q2_K": BlockKind(84, 4, 16, True, _q2_k),
    "Q3_K": BlockKind(110, 4, 16, False, _q3_k),
    "Q4_K": BlockKind(144, 4, 32, True, _q4_k),
    "Q5_K": BlockKind(176, 8, 32, True, _q5_k),
    "Q6_K": BlockKind(210, 8, 16, False, _q6_k),
}
"""ggml's name of a kind to how it is held."""


def decode_blocks(kind: str, raw: Bytes) -> Blocks:
    """Decodes a tensor of a kind in `BLOCK_KINDS`.

    Args:
        kind: ggml's name.
        raw: uint8 [rows, bytes per row].
    """
    entry = BLOCK_KINDS[kind]
    rows = raw.shape[0]
    parts = entry.decode(raw.reshape(-1, entry.block_bytes))
    rest = None if parts.rest is None else parts.rest.reshape(rows, -1)
    return Blocks(
        parts.quants.reshape(rows, -1),
        parts.scales.reshape(rows, -1),
        rest,
        entry.bits,
        entry.block_size,
    )


def quantise(weights: Floats, bits: int, block_size: int = 32) -> Blocks:
    """Quantises weights [rows, columns] symmetrically, in blocks along the columns.

    Eight bits: the largest magnitude becomes 127. Four bits: of several scales near the one
    that maps the value of largest magnitude to -8, the one with the least squared error.
    """
    rows, columns = weights.shape
    blocks = weights.reshape(rows, -1, block_size)
    centre = 1 << (bits - 1)
    if bits == 8:
        scale = np.abs(blocks).max(axis=-1) / (centre - 1)
        quants = _round(blocks, scale, centre)
    else:
        peak = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
        scale, quants, best = np.zeros_like(peak), np.full(blocks.shape, centre, np.uint8), None
        for divisor in (8.0, 7.5, 7.0, 6.5, 6.0):
            trial = -peak / np.float32(divisor)
            guess = _round(blocks, trial, centre)
            residue = (guess.astype(np.float32) - centre) * trial[..., None] - blocks
            error = np.square(residue).sum(axis=-1)
            better = np.ones_like(error, bool) if best is None else error < best
            best = error if best is None else np.minimum(error, best)
            scale = np.where(better, trial, scale)
            quants = np.where(better[..., None], guess, quants)
    return Blocks(quants.reshape(rows, columns), scale.astype(np.float32), None, bits, block_size)


def _round(blocks: Floats, scale: Floats, centre: int) -> Bytes:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    steps = np.rint(blocks * inverse[..., None]) + centre
    quants: Bytes = np.clip(steps, 0, 2 * centre - 1).astype(np.uint8)
    return quants
