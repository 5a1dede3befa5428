from __future__ import annotations

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tokenmill.backends.graph.lengths import blocks, computed_places, constants_of, places
from tokenmill.backends.graph.masks import Case


def test_constants_are_small_whole_numbers_above_one() -> None:
    graph = GraphProto()
    graph.initializer.append(numpy_helper.from_array(np.array([0, 1, 7, -3]), "ints"))
    graph.initializer.append(numpy_helper.from_array(np.array([2.5, 40.0, np.inf]), "floats"))
    graph.initializer.append(numpy_helper.from_array(np.arange(100, 117), "weight"))
    graph.initializer.append(numpy_helper.from_array(np.array([True]), "truth"))
    outside = TensorProto(name="outside", data_type=TensorProto.INT64, dims=[1])
    outside.data_location = TensorProto.EXTERNAL
    graph.initializer.append(outside)
    for attribute in (
        {"value": numpy_helper.from_array(np.array(60), "")},
        {"value_int": 61},
        {"value_ints": [62, 63]},
        {"value_float": 64.0},
        {"value_string": "65"},
    ):
        graph.node.append(helper.make_node("Constant", [], ["x"], **attribute))
    graph.node.append(helper.make_node("Unsqueeze", ["x"], ["y"], axis=66))
    assert constants_of(graph) == {7, 40, 60, 61, 62, 63, 64}


def test_places_end_before_and_behind_each_constant() -> None:
    ends = [case.total for case in places({40}, 64)]
    assert ends == [4, 8, 16, 24, 32, 40, 41, 42, 48, 56, 64]
    assert {case.new for case in places({40}, 64)} == {2}


def test_places_stay_within_the_context() -> None:
    assert [case.total for case in places({62, 63, 64, 100}, 64)][-3:] == [62, 63, 64]
    assert places({1, 2}, 3) == [Case(1, 2, 1)]


def test_what_two_constants_make_has_a_place() -> None:
    totals = {case.total for case in computed_places({30, 1000}, 100, 40_000)}
    # 30 * 1000, 30 + 1000, 1000 - 30, 1000 + 1000, 30 * 30; 1000 * 1000 is beyond.
    assert {30_002, 1032, 972, 2002, 902} <= totals
    assert max(case.total for case in computed_places({200}, 100, 40_001)) == 40_001


@pytest.mark.parametrize("stop", [1, 5, 64, 1000])
def test_blocks_hold_every_query_once(stop: int) -> None:
    cases = list(blocks(stop, 4096))
    queries = [query for case in cases for query in range(case.past, case.total)]
    assert queries == list(range(stop))
    assert all(case.new * case.total <= 4096 for case in cases)
