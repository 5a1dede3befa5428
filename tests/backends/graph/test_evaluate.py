"""Parts of a graph, evaluated on a few numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, parser

from support.plain_layer import PORTS, make_layer
from tokenmill.backends.graph import evaluate
from tokenmill.backends.graph.cases import feeds
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.shape_rules import Shaped

GRAPH = """
    <ir_version: 10, opset_import: ["": 21]>
    part (float[n] x) => (float[n] y) <float[2] w = {1, 2}> {
        two = Constant<value_float = 2.0>()
        twice = Mul(w, two)
        y = Add(x, twice)
    }
"""


@pytest.fixture
def evaluator(tmp_path: Path) -> Evaluator:
    return Evaluator(parser.parse_model(GRAPH), OutsideWeights(tmp_path))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators that are computed."""
    operators: list[str] = []
    compute = Evaluator.compute

    def noted(self: Evaluator, node: object, inputs: object) -> object:
        operators.append(node.op_type)  # type: ignore[attr-defined]
        return compute(self, node, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(Evaluator, "compute", noted)
    return operators


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def test_what_depends_on_no_input_is_computed_once(
    evaluator: Evaluator, computed: list[str]
) -> None:
    assert Evaluation(evaluator, x(1, 1)).known("y").tolist() == [3, 5]
    assert Evaluation(evaluator, x(2, 2)).known("y").tolist() == [4, 6]
    assert computed.count("Mul") == 1
    assert computed.count("Add") == 2


def test_what_is_given_takes_the_place_of_what_is_fixed(evaluator: Evaluator) -> None:
    base = Evaluation(evaluator, x(1, 1))
    assert base.known("y").tolist() == [3, 5]
    given = base.having({"w": np.array([10, 20], np.float32)})
    assert given.known("y").tolist() == [21, 41]
    assert base.known("twice").tolist() == [2, 4]


def test_shapes_stand_for_what_is_not_known(evaluator: Evaluator) -> None:
    value = Evaluation(evaluator, {"x": Shaped(np.dtype(np.float32), (2,))}).get("y")
    assert value == Shaped(np.dtype(np.float32), (2,))
    with pytest.raises(CannotEvaluate, match="nothing makes absent"):
        Evaluation(evaluator, x(1, 1)).get("absent")


def test_a_graph_that_is_not_in_order_is_computed_all_the_same(tmp_path: Path) -> None:
    model = parser.parse_model(GRAPH)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[::-1], helper.make_node("Neg", ["later"], ["early"])])
    model.graph.node.append(helper.make_node("Neg", ["x"], ["later"]))
    evaluation = Evaluation(Evaluator(model, OutsideWeights(tmp_path)), x(1, 1))
    assert evaluation.known("y").tolist() == [3, 5]
    assert evaluation.known("early").tolist() == [1, 1]


def test_a_tensor_that_would_be_too_large_is_not_computed(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "MAX_ELEMENTS", 1)
    with pytest.raises(CannotEvaluate, match="Mul of 2 elements"):
        Evaluation(evaluator, x(1, 1)).get("y")


def test_a_model_goes_with_its_last_evaluation(tmp_path: Path) -> None:
    evaluator = Evaluator(make_layer(), OutsideWeights(tmp_path))
    evaluation = Evaluation(evaluator, feeds(evaluator.graph, PORTS, Case(1, 2, 3)))
    evaluation.known("bias")
    alive = weakref.ref(evaluator)
    gc.disable()
    try:
        del evaluator, evaluation
        assert alive() is None
    finally:
        gc.enable()
