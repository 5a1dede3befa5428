"""Rows of other lengths in the same call must not change what a row computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from tokenmill.backends.graph.cases import context_of, feeds
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.lengths import constants_of, places
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.names import inputs_of
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.ports import LENGTHS_INPUT, TOTAL_INPUT, DecoderPorts
from tokenmill.backends.graph.shape_rules import Value
from tokenmill.backends.graph.sites import Refused

_GROUPED = "GroupQueryAttention"
_LENGTHS, _TABLES = 5, 7
"""Its inputs between the two are lengths and the longest one."""
_PAST = 9


class RowsDepend(Refused):
    """What a row computes depends on the longest row of its call."""


def check_company(model: ModelProto, ports: DecoderPorts, outside: OutsideWeights) -> None:
    """Compares a short row beside its like with the same beside longer ones, of many lengths.

    What attention computes of its lengths is each row's own. Anything else that differs must be
    gone before it meets the model's numbers: a table that is cut to the longest row, say.

    Args:
        model: whose state is in shared buffers; it takes lengths, or a mask that is padded on the
            right.
        outside: reads the model's external weights.

    Raises:
        RowsDepend: what the short row computes depends on the other one.
    """
    graph = model.graph
    evaluator, case = Evaluator(model, outside), Case(2, 1, _PAST)
    like = dict(feeds(graph, ports, case))
    ends = [place.total for place in places(constants_of(graph), context_of(ports))]
    given = [_with_length(like, ports, end) for end in ends if end > case.total]
    alone = Evaluation(evaluator, like)
    others = [Evaluation(evaluator, changed) for changed in given]
    touched = {LENGTHS_INPUT, TOTAL_INPUT, ports.position_ids, ports.attention_mask}
    differing = {TOTAL_INPUT}
    for node in graph.node:
        names = list(inputs_of(node))
        if node.op_type == _GROUPED:
            names = [*node.input[:_LENGTHS], *node.input[_TABLES:]]
        if touched.isdisjoint(names):
            continue
        depends = not differing.isdisjoint(names)
        for name in node.output:
            found = _known(name, (alone, *others))
            if found is not None:
                touched.add(name)
                if not all(_agree(found[0], beside) for beside in found[1:]):
                    differing.add(name)
            elif depends and node.op_type == "Slice" and node.input[0] not in differing:
                touched.add(name)
            elif depends:
                raise RowsDepend(f"rows depend on the longest one of a call, by {node.op_type}")


def _known(name: str, evaluations: Iterable[Evaluation]) -> list[NDArray[Any]] | None:
    """Returns a tensor's values, or None where one cannot be told."""
    found = []
    for evaluation in evaluations:
        try:
            found.append(evaluation.known(name))
        except CannotEvaluate:
            return None
    return found


def _with_length(given: dict[str, Value], ports: DecoderPorts, length: int) -> dict[str, Value]:
    """Returns inputs whose second row has so many tokens with its new one."""
    changed = dict(given)
    for name in (LENGTHS_INPUT, ports.position_ids):
        if name is not None and name in given:
            array = np.array(given[name])
            array[1] = length - 1
            changed[name] = array
    if ports.attention_mask in given:
        assert ports.attention_mask is not None, "no input is called None"
        mask = np.array(given[ports.attention_mask])
        wider = np.zeros((2, length), mask.dtype)
        wider[0, : mask.shape[1]] = 1
        wider[1] = 1
        changed[ports.attention_mask] = wider
    changed[TOTAL_INPUT] = np.array(length, np.int32)
    return changed


def _agree(alike: NDArray[Any], beside: NDArray[Any]) -> bool:
    """Whether the first row is the same, or one tensor continues the other along an axis."""
    if alike.ndim != beside.ndim:
        return False
    if alike.ndim and alike.shape[0] == beside.shape[0] == 2:
        alike, beside = alike[:1], beside[:1]
    sizes = enumerate(zip(alike.shape, beside.shape, strict=True))
    longer = [axis for axis, (size, other) in sizes if size < other]
    if len(longer) == 1:
        beside = beside.take(range(alike.shape[longer[0]]), longer[0])
    return np.array_equal(alike, beside)
