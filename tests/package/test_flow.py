import pytest
from onnx import TensorProto, helper

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.flow import KEEPING, Flow, Value
from tokenmill.package.onnx_file import read_onnx


def flow_of(path, *nodes):
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [output]) for operator, inputs, output in nodes],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])],
    )
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return Flow(read_onnx(path))


def test_a_value_made_of_itself_has_no_origin(tmp_path):
    flow = flow_of(tmp_path / "m", ("Identity", ["b"], "a"), ("Cast", ["a"], "b"))
    assert list(flow.origins(Value(0, "a"), KEEPING)) == []
    assert not flow.is_constant(Value(0, "a"))


def test_a_weight_in_another_type_is_constant(tmp_path):
    flow = flow_of(tmp_path / "m", ("Cast", ["w"], "a"), ("Cast", ["x"], "b"))
    assert flow.is_constant(Value(0, "a"))
    assert not flow.is_constant(Value(0, "b"))


def test_a_graph_that_would_take_hours_is_refused(tmp_path):
    chain = [("Add", [f"v{n}", "w"], f"v{n + 1}") for n in range(1000)]
    flow = flow_of(tmp_path / "m", ("Neg", ["x"], "v0"), *chain)

    def follow_each():
        return [list(flow.forward(Value(0, f"v{n}"), lambda use: True)) for n in range(1000)]

    with pytest.raises(UnsupportedModel, match=r"m is too tangled .* its 1001 operators"):
        follow_each()
