"""Shapes of outputs, where they can be told without computing anything."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper


class Shaped(NamedTuple):
    """A tensor of which only type and shape are known."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


Value = NDArray[Any] | Shaped


def output_shapes(node: NodeProto, inputs: Sequence[Value | None]) -> list[Shaped] | None:
    """Returns types and shapes of the node's outputs, or None where no rule tells them."""
    rule = _RULES.get(node.op_type)
    if rule is None or not inputs or inputs[0] is None:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return rule(node, inputs, attributes)


def _matmul(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    a, b = inputs[:2]
    if len(a.shape) < 2 or len(b.shape) < 2:
        return None
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return [Shaped(a.dtype, (*lead, a.shape[-2], b.shape[-1]))]


def _gemm(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    a, b = inputs[:2]
    rows = a.shape[1 if attributes.get("transA") else 0]
    return [Shaped(a.dtype, (rows, b.shape[0 if attributes.get("transB") else 1]))]


def _matmul_nbits(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    return [Shaped(inputs[0].dtype, (*inputs[0].shape[:-1], attributes["N"]))]


def _gather_rows(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    data, indices = inputs[:2]
    axis = attributes.get("axis", 0) % len(data.shape)
    if not isinstance(data, Shaped):
        return None
    return [Shaped(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))]


def _like_first(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    like = Shaped(inputs[0].dtype, inputs[0].shape)
    return [like for _ in node.output]


def _cast(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    return [Shaped(dtype, inputs[0].shape)]


def _dequantize(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    return [Shaped(inputs[1].dtype, inputs[0].shape)]


def _broadcast(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    return [Shaped(inputs[0].dtype, tuple(shape))]


def _where(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    return [Shaped(inputs[1].dtype, tuple(shape))]


def _transpose(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    shape = inputs[0].shape
    perm = attributes.get("perm") or range(len(shape))[::-1]
    return [Shaped(inputs[0].dtype, tuple(shape[axis] for axis in perm))]


def _concat(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    if inputs[0].dtype.kind != "f":
        return None
    shape = list(inputs[0].shape)
    axis = attributes["axis"] % len(shape)
    shape[axis] = sum(value.shape[axis] for value in inputs)
    return [Shaped(inputs[0].dtype, tuple(shape))]


def _expand(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    if isinstance(inputs[1], Shaped):
        return None
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1]))
    return [Shaped(inputs[0].dtype, tuple(shape))]


def _attention(node: NodeProto, inputs: Any, attributes: dict[str, Any]) -> list[Shaped] | None:
    """ONNX's and the grouped one, where queries are as wide as values."""
    out = [Shaped(inputs[0].dtype, inputs[0].shape)]
    new = inputs[1].shape
    for past in inputs[4:6] if node.op_type == "Attention" else inputs[3:5]:
        if past is not None:
            tokens = past.shape[2] + (new[1] if len(new) == 3 else new[2])
            shape = (*past.shape[:2], tokens, past.shape[3])
            out.append(Shaped(past.dtype, shape))
    return out


_RULES = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "MatMulNBits": _matmul_nbits,
    "Gather": _gather_rows,
    "Cast": _cast,
    "DequantizeLinear": _dequantize,
    "Where": _where,
    "Transpose": _transpose,
    "Concat": _concat,
    "Expand": _expand,
    "Attention": _attention,
    "GroupQueryAttention": _attention,
    "RotaryEmbedding": _like_first,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _broadcast),
    **dict.fromkeys(
        (
            "Softmax",
            "Tanh",
            "Sigmoid",
            "Erf",
            "Gelu",
            "FastGelu",
            "QuickGelu",
            "Relu",
            "Neg",
            "Sqrt",
            "Identity",
            "LayerNormalization",
            "RMSNormalization",
            "SimplifiedLayerNormalization",
            "SkipSimplifiedLayerNormalization",
            "SkipLayerNormalization",
        ),
        _like_first,
    ),
}
