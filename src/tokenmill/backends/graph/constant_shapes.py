"""Reshapes whose sizes are computed at every step get them as constants, where they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from tokenmill.backends.graph.cases import SHORT, feeds
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.names import drop_unused
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.ports import DecoderPorts

_PREFIX = "tokenmill.shape"

Shapes = Sequence[tuple[int, ...]]
"""Of one tensor, for several numbers of rows and tokens."""


def constant_shapes(model: ModelProto, ports: DecoderPorts, outside: OutsideWeights) -> None:
    """Replaces the computed sizes; what computed them goes where nothing else needs it."""
    graph = model.graph
    evaluator = Evaluator(model, outside)
    evaluations = [Evaluation(evaluator, feeds(graph, ports, case)) for case in SHORT]
    made: dict[tuple[int, ...], str] = {}
    for node in graph.node:
        if node.op_type != "Reshape" or evaluator.weight(node.input[1]) is not None:
            continue
        try:
            before, after = (
                [evaluation.get(name).shape for evaluation in evaluations]
                for name in (node.input[0], node.output[0])
            )
        except CannotEvaluate:
            continue
        sizes = _sizes(node, before, after)
        if sizes is None:
            continue
        if sizes not in made:
            made[sizes] = f"{_PREFIX}.{len(made)}"
            array = np.array(sizes, np.int64)
            graph.initializer.append(numpy_helper.from_array(array, made[sizes]))
        node.input[1] = made[sizes]
    drop_unused(graph)


def _sizes(node: NodeProto, before: Shapes, after: Shapes) -> tuple[int, ...] | None:
    """Returns sizes that make `after` of `before`: numbers, 0 for "as it was", -1 for the rest."""
    if any(a.name == "allowzero" and a.i for a in node.attribute):
        return None
    if len({len(shape) for shape in after}) != 1:
        return None
    out: list[int] = []
    for axis, found in enumerate(zip(*after, strict=True)):
        if len(set(found)) == 1:
            out.append(found[0])
        elif all(axis < len(was) and was[axis] == n for was, n in zip(before, found, strict=True)):
            out.append(0)
        else:
            out.append(-1)
    return None if out.count(-1) > 1 or not out else tuple(out)
