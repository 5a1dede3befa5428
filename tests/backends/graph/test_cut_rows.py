from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from support.tiny_onnx import TinySpec, make_decoder
from tokenmill.backends.graph.cut_rows import cut_rows

_RNG = np.random.default_rng(0)
_WEIGHTS = {
    "w": _RNG.standard_normal((8, 6)),
    "low": _RNG.standard_normal((8, 2)),
    "up": _RNG.standard_normal((2, 6)),
    "bias": _RNG.standard_normal(6),
    "bias3": _RNG.standard_normal((1, 2, 6)),
    "wt": _RNG.standard_normal((6, 8)),
    "norm": _RNG.standard_normal(8),
}


def head(*nodes: onnx.NodeProto, extra_output: str = "") -> onnx.ModelProto:
    """A graph from `x` [batch, sequence, 8] to `logits` [batch, sequence, 6]."""
    value = helper.make_tensor_value_info
    outputs = [value("logits", TensorProto.FLOAT, ["b", "s", 6])]
    if extra_output:
        outputs.append(value(extra_output, TensorProto.FLOAT, None))
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["hidden"]), *nodes],
        "head",
        [value("x", TensorProto.FLOAT, ["b", "s", 8])],
        outputs,
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in _WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model: onnx.ModelProto, feeds: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["logits"], feeds)[0]


node = helper.make_node

RECOGNISED = {
    "product": [node("MatMul", ["hidden", "w"], ["logits"])],
    "bias": [node("MatMul", ["hidden", "w"], ["y"]), node("Add", ["y", "bias"], ["logits"])],
    "two factors": [
        node("MatMul", ["hidden", "low"], ["y"]),
        node("MatMul", ["y", "up"], ["logits"]),
    ],
    "side branch": [
        node("MatMul", ["hidden", "w"], ["a"]),
        node("MatMul", ["hidden", "low"], ["sums"]),
        node("MatMul", ["sums", "up"], ["b"]),
        node("Add", ["a", "b"], ["logits"]),
    ],
    "transposed weight": [
        node("Transpose", ["wt"], ["w2"], perm=[1, 0]),
        node("MatMul", ["hidden", "w2"], ["logits"]),
    ],
    "capped": [
        node("MatMul", ["hidden", "w"], ["y"]),
        node("Tanh", ["y"], ["z"]),
        node("Cast", ["z"], ["logits"], to=TensorProto.FLOAT),
    ],
}

NOT_RECOGNISED = {
    "no product": [node("Slice", ["hidden", "i0", "i6", "i2"], ["logits"])],
    "other positions": [
        node("MatMul", ["hidden", "w"], ["y"]),
        node("CumSum", ["y", "one"], ["logits"]),
    ],
    "softmax": [node("MatMul", ["hidden", "w"], ["y"]), node("Softmax", ["y"], ["logits"])],
    "bias by position": [
        node("MatMul", ["hidden", "w"], ["y"]),
        node("Add", ["y", "bias3"], ["logits"]),
    ],
    "weight that is computed": [
        node("Transpose", ["hidden"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["hidden", "t"], ["y"]),
        node("MatMul", ["y", "y"], ["logits"]),
    ],
}


@pytest.mark.parametrize("nodes", RECOGNISED.values(), ids=RECOGNISED.keys())
def test_chosen_rows_are_those_of_the_whole_graph(nodes: list[onnx.NodeProto]) -> None:
    model = head(*nodes)
    x = _RNG.standard_normal((2, 5, 8)).astype(np.float32)
    whole = run(model, {"x": x}).reshape(10, 6)
    assert cut_rows(model.graph, "logits", "positions")
    onnx.checker.check_model(model)
    for chosen in ([9, 0, 3], [4], list(range(10)), []):
        rows = run(model, {"x": x, "positions": np.array(chosen, np.int64)})
        assert np.array_equal(rows, whole[chosen])


@pytest.mark.parametrize("nodes", NOT_RECOGNISED.values(), ids=NOT_RECOGNISED.keys())
def test_a_head_that_is_not_recognised_is_left_as_it_is(nodes: list[onnx.NodeProto]) -> None:
    model = head(*nodes)
    before = model.SerializeToString()
    assert not cut_rows(model.graph, "logits", "positions")
    assert model.SerializeToString() == before


@pytest.mark.parametrize("is_output", [True, False])
def test_a_head_that_others_read_is_left_as_it_is(is_output: bool) -> None:
    others = [] if is_output else [node("ReduceSum", ["y"], ["sum"])]
    model = head(
        node("MatMul", ["hidden", "w"], ["y"]),
        *others,
        node("Add", ["y", "bias"], ["logits"]),
        extra_output="y" if is_output else "sum",
    )
    before = model.SerializeToString()
    assert not cut_rows(model.graph, "logits", "positions")
    assert model.SerializeToString() == before


def test_hidden_states_that_others_read_keep_all_their_rows() -> None:
    model = head(node("MatMul", ["hidden", "w"], ["logits"]), extra_output="hidden")
    assert cut_rows(model.graph, "logits", "positions")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.ones((1, 4, 8), np.float32)
    logits, hidden = session.run(None, {"x": x, "positions": np.array([2])})
    assert (logits.shape, hidden.shape) == ((1, 6), (1, 4, 8))


def test_an_unknown_output_is_not_recognised() -> None:
    assert not cut_rows(make_decoder(TinySpec()).graph, "missing", "positions")


def test_the_cut_comes_right_before_the_first_product_of_a_decoder() -> None:
    for spec in (TinySpec(), TinySpec(bits=4, head_bits=8, correction=True, soft_cap=True)):
        model = make_decoder(spec)
        assert cut_rows(model.graph, "logits", "positions")
        gather = next(n for n in model.graph.node if n.input[-1] == "positions")
        flatten = next(n for n in model.graph.node if n.output[0] == gather.input[0])
        producer = next(n for n in model.graph.node if flatten.input[0] in n.output)
        assert producer.op_type == "SkipSimplifiedLayerNormalization"
