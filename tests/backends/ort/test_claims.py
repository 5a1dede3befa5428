from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tokenmill.backends.ort.claims import RECORD_CLAIMS, read_claims


def _graph() -> bytes:
    square = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [square])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(made.SerializeToString())


def test_a_session_on_the_cpu() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(RECORD_CLAIMS, "1")
    session = onnxruntime.InferenceSession(_graph(), options, ["CPUExecutionProvider"])
    assert read_claims(session) == {"cpu": {"MatMul": 2, "Softmax": 1}}


def test_providers_in_order_with_operators_by_number() -> None:
    def part(name: str, *operators: str) -> Any:
        nodes = [SimpleNamespace(op_type=operator) for operator in operators]
        return SimpleNamespace(ep_name=name, get_nodes=lambda: nodes)

    session = SimpleNamespace(
        get_providers=lambda: ["XExecutionProvider", "idle_ep", "CPUExecutionProvider"],
        get_provider_graph_assignment_info=lambda: [
            part("CPUExecutionProvider", "Cast"),
            part("XExecutionProvider", "Add", "MatMul"),
            part("XExecutionProvider", "MatMul"),
        ],
    )
    claims = read_claims(session)
    assert claims == {"x": {"MatMul": 2, "Add": 1}, "idle_ep": {}, "cpu": {"Cast": 1}}
    assert [*claims] == ["x", "idle_ep", "cpu"]
    assert [*claims["x"]] == ["MatMul", "Add"]
