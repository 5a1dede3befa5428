from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.tiny_onnx import TinySpec, make_decoder
from tokenmill.backends.graph.direct_lengths import direct_lengths


def with_lengths(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A tiny decoder whose `lengths` and `total` are computed by the given nodes."""
    model = make_decoder(TinySpec(layers=1))
    graph = model.graph
    attention = next(n for n in graph.node if n.op_type == "GroupQueryAttention")
    attention.input[5], attention.input[6] = "lengths", "total"
    constants = {
        "one": np.array([1], np.int64),
        "one0": np.array(1, np.int64),
        "zero": np.array([0], np.int64),
    }
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    kept = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *kept])
    return model


node = helper.make_node
INT32 = {"to": TensorProto.INT32}
TOTAL = [
    node("Shape", ["attention_mask"], ["shape"]),
    node("Gather", ["shape", "one0"], ["total64"], axis=0),
    node("Cast", ["total64"], ["total"], **INT32),
]

RECOGNISED = {
    "cast first": [
        node("Cast", ["attention_mask"], ["mask32"], **INT32),
        node("Cast", ["one"], ["one32"], **INT32),
        node("ReduceSum", ["mask32", "one"], ["sum"], keepdims=0),
        node("Sub", ["sum", "one32"], ["lengths"]),
        *TOTAL,
    ],
    "sum kept, then squeezed": [
        node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=1),
        node("Squeeze", ["sum", "one"], ["flat"]),
        node("Sub", ["flat", "one"], ["less"]),
        node("Cast", ["less"], ["lengths"], **INT32),
        *TOTAL,
    ],
}
NOT_RECOGNISED = {
    "not less one": [
        node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["lengths"], **INT32),
        *TOTAL,
    ],
    "longest row for all": [
        node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=0),
        node("Sub", ["sum", "one"], ["less"]),
        node("ReduceMax", ["less"], ["most"], keepdims=1),
        node("Cast", ["most"], ["lengths"], **INT32),
        *TOTAL,
    ],
    "total from the batch": [
        *RECOGNISED["cast first"][:4],
        node("Shape", ["attention_mask"], ["shape"]),
        node("Gather", ["shape", "zero"], ["total64"], axis=0),
        node("Cast", ["total64"], ["total"], **INT32),
    ],
    "lengths that also depend on the tokens": [
        node("ReduceSum", ["input_ids", "one"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["lengths"], **INT32),
        *TOTAL,
    ],
    "lengths of another rank": [
        node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=1),
        node("Sub", ["sum", "one"], ["less"]),
        node("Cast", ["less"], ["lengths"], **INT32),
        *TOTAL,
    ],
}


@pytest.mark.parametrize("nodes", RECOGNISED.values(), ids=RECOGNISED.keys())
def test_any_spelling_is_recognised(nodes: list[onnx.NodeProto]) -> None:
    model = with_lengths(*nodes)
    assert direct_lengths(model, "attention_mask", "new.lengths", "new.total")
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {port.name: port.type.tensor_type for port in model.graph.input}
    assert "attention_mask" not in inputs
    assert inputs["new.lengths"].elem_type == inputs["new.total"].elem_type == TensorProto.INT32
    assert len(inputs["new.total"].shape.dim) == 0
    assert not any("sum" in n.output for n in model.graph.node)


@pytest.mark.parametrize("nodes", NOT_RECOGNISED.values(), ids=NOT_RECOGNISED.keys())
def test_other_lengths_keep_the_mask(nodes: list[onnx.NodeProto]) -> None:
    model = with_lengths(*nodes)
    before = model.SerializeToString()
    assert not direct_lengths(model, "attention_mask", "new.lengths", "new.total")
    assert model.SerializeToString() == before


def test_layers_with_lengths_of_their_own_keep_the_mask() -> None:
    model = make_decoder(TinySpec())
    second = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"][1]
    second.input[5] = "other"
    assert not direct_lengths(model, "attention_mask", "new.lengths", "new.total")


def test_a_graph_without_grouped_attention_is_not_recognised() -> None:
    model = helper.make_model(helper.make_graph([], "empty", [], []))
    assert not direct_lengths(model, "attention_mask", "new.lengths", "new.total")
