"""Operators that are many, computed here since preparing the reference costs more than they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from tokenmill.backends.graph.shape_rules import Shaped, Value


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((a.i for a in node.attribute if a.name == name), default)


def _shape_of(node: NodeProto, inputs: Sequence[Value | None]) -> Value | None:
    value = inputs[0]
    if value is None or (node.attribute and not isinstance(value, Shaped)):
        return None
    stop = _attribute(node, "end", len(value.shape))
    return np.array(value.shape[_attribute(node, "start", 0) : stop], np.int64)


def _unsqueeze(node: NodeProto, inputs: Sequence[Value | None]) -> Value | None:
    if len(inputs) != 2 or not all(isinstance(value, np.ndarray) for value in inputs):
        return None
    data, axes = inputs
    assert isinstance(data, np.ndarray), "both are"
    assert isinstance(axes, np.ndarray), "both are"
    return np.expand_dims(data, tuple(int(axis) for axis in axes.ravel()))


def _gather(node: NodeProto, inputs: Sequence[Value | None]) -> Value | None:
    data, indices = inputs
    if not isinstance(data, np.ndarray) or not isinstance(indices, np.ndarray):
        return None
    return np.asarray(np.take(data, indices, _attribute(node, "axis", 0)))


def _gather_elements(node: NodeProto, inputs: Sequence[Value | None]) -> Value | None:
    data, indices = inputs
    if not isinstance(data, np.ndarray) or not isinstance(indices, np.ndarray):
        return None
    return np.take_along_axis(data, indices, _attribute(node, "axis", 0))


DIRECT = {
    "Shape": _shape_of,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    # The reference takes no axis longer than 64.
    "GatherElements": _gather_elements,
}
"""By type: takes the node and its inputs; returns the output, or None where it cannot."""
