"""Rotary embedding of queries and keys, found by evaluation, so that attention can do it itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.sites import GraphIndex

Floats = NDArray[Any]

_TOLERANCE = 1e-4
_MAX_STEPS = 60
"""How many operators between a projection and its rotated form are looked at."""
_LAYERS = {"MatMul", "MatMulNBits", "Gemm", "Softmax"}
"""Operators before which no unrotated form is looked for."""
_DIVISOR = 16
"""GroupQueryAttention of ONNX Runtime rotates a multiple of so many dimensions."""


class Rotation(NamedTuple):
    """How a tensor is rotated.

    Attributes:
        source: the tensor before.
        order: of its axes, see `shape_of`.
        width: how many of a head's first dimensions are rotated.
        is_interleaved: whether pairs are neighbours, or half a width apart.
        cos, sin: [tokens, width / 2]; a factor of all scores may be in them.
        rest: the factor of the dimensions that are not rotated.
    """

    source: str
    order: int
    width: int
    is_interleaved: bool
    cos: Floats
    sin: Floats
    rest: float


def find_rotation(
    name: str, heads: int, dim: int, index: GraphIndex, case: Case, evaluation: Evaluation
) -> Rotation | None:
    """Returns how a tensor is rotated, or None where it is not, or not by positions alone.

    Args:
        name: [batch, heads, tokens, dim], or [batch, tokens, heads * dim].
        case: of which `evaluation` is.
    """
    if evaluation.get(name).dtype != np.float32:
        # A table read off rounder numbers would be rounded twice.
        return None
    rng = np.random.default_rng(0)
    for source in reversed(list(_before(name, heads, dim, index, case, evaluation))):
        before = evaluation.get(source)
        given = rng.standard_normal(before.shape).astype(before.dtype)
        try:
            found = evaluation.having({source: given}).known(name)
        except CannotEvaluate:
            continue
        x, y = (heads_first(array, case, heads, dim) for array in (given, found))
        if x is None or y is None:
            continue
        rotation = _fit(source, x[1], x[0].astype(np.float64), y[0].astype(np.float64))
        if rotation is not None:
            return rotation
    return None


def read_table(
    name: str, rotation: Rotation, heads: int, dim: int, case: Case, evaluation: Evaluation
) -> tuple[Floats, Floats] | None:
    """Returns the cosines and sines of a case's positions, as `rotation` pairs dimensions."""
    given = np.ones(shape_of(rotation.order, case, heads, dim), np.float32)
    try:
        found = evaluation.having({rotation.source: given}).known(name)
    except CannotEvaluate:
        return None
    y = heads_first(found, case, heads, dim)
    if y is None:
        return None
    a, b = _pairs(y[0][0, 0].astype(np.float64), rotation.width, rotation.is_interleaved)
    # Of two ones become cos - sin and cos + sin.
    return (a + b) / 2, (b - a) / 2


def shape_of(order: int, case: Case, heads: int, dim: int) -> tuple[int, ...]:
    """Returns the shape of one of the usual orders of axes."""
    orders: tuple[tuple[int, ...], ...] = (
        (case.batch, heads, case.new, dim),
        (case.batch, case.new, heads, dim),
        (case.batch, case.new, heads * dim),
    )
    return orders[order]


def heads_first(array: Floats, case: Case, heads: int, dim: int) -> tuple[Floats, int] | None:
    """Returns [batch, heads, tokens, dim] of a tensor, and the order that it has."""
    for order in range(3):
        if array.shape == shape_of(order, case, heads, dim):
            if order == 0:
                return array, 0
            split = array.reshape(shape_of(1, case, heads, dim))
            return split.transpose(0, 2, 1, 3), order
    return None


def _before(
    name: str, heads: int, dim: int, index: GraphIndex, case: Case, evaluation: Evaluation
) -> Iterator[str]:
    """Yields tensors of the same numbers, nearest first."""
    size = case.batch * case.new * heads * dim
    waiting, seen = [index.source(name)], {index.source(name)}
    for _ in range(_MAX_STEPS):
        if not waiting:
            return
        node = index.maker(waiting.pop(0))
        if node is None or node.op_type in _LAYERS:
            continue
        for tensor in node.input:
            source = index.source(tensor)
            if not source or source in seen:
                continue
            seen.add(source)
            try:
                value = evaluation.get(source)
            except CannotEvaluate:
                continue
            if value.dtype.kind == "f" and value.size == size:
                yield source
            if value.dtype.kind == "f":
                waiting.append(source)


def _fit(source: str, order: int, x: Floats, y: Floats) -> Rotation | None:
    dim = x.shape[-1]
    for width in range(dim // _DIVISOR * _DIVISOR, 0, -_DIVISOR):
        rest = 1.0
        if width < dim:
            a, b = x[..., width:], y[..., width:]
            rest = float((a * b).sum() / (a * a).sum())
            if not _close(b, rest * a):
                continue
        for is_interleaved in (False, True):
            xa, xb = _pairs(x, width, is_interleaved)
            ya, yb = _pairs(y, width, is_interleaved)
            norm = (xa * xa + xb * xb).sum((0, 1))
            cos = (ya * xa + yb * xb).sum((0, 1)) / norm
            sin = (yb * xa - ya * xb).sum((0, 1)) / norm
            if _close(ya, cos * xa - sin * xb) and _close(yb, cos * xb + sin * xa):
                if np.abs(sin).max() < _TOLERANCE:
                    return None
                return Rotation(source, order, width, is_interleaved, cos, sin, rest)
    return None


def _pairs(x: Floats, width: int, is_interleaved: bool) -> tuple[Floats, Floats]:
    if is_interleaved:
        return x[..., 0:width:2], x[..., 1:width:2]
    return x[..., : width // 2], x[..., width // 2 : width]


def _close(a: Floats, b: Floats) -> bool:
    return bool(np.abs(a - b).max() <= _TOLERANCE * max(np.abs(b).max(), 1e-6))
