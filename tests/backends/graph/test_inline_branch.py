from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from tokenmill.backends.graph.inline_branch import inline_branch

MERGED = """
    <ir_version: 10, opset_import: ["": 21]>
    merged (bool[1] use_cache, float[n] x) => (float[n] y, float[n] z) {
        inner = Neg(x)
        outer = Mul(x, x)
        y, z = If(use_cache) <
            then_branch = with_past () => (float[n] inner_y, float[n] outer) {
                inner = Add(x, x)
                inner_y = Add(inner, outer)
            },
            else_branch = without () => (float[n] other, float[n] inner) {
                other = Abs(x)
            }
        >
    }
"""


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["y", "z"], feeds)


def test_the_branch_with_a_past_takes_the_place_of_both() -> None:
    # The branch's own `inner` is another tensor than the graph's.
    model = model_of(MERGED)
    assert inline_branch(model.graph, "use_cache")
    assert "If" not in {node.op_type for node in model.graph.node}
    del model.graph.input[0]
    y, z = run(model, x=np.array([3.0], np.float32))
    assert (y.tolist(), z.tolist()) == ([15.0], [9.0])


def test_a_branch_that_depends_on_more_is_not_inlined() -> None:
    model = model_of(
        MERGED.replace("If(use_cache)", "If(both)").replace(
            "inner = Neg(x)",
            "inner = Neg(x) total = ReduceSum<keepdims = 0>(x) some = Cast<to = 9>(total) "
            "both = And(use_cache, some)",
        )
    )
    before = model.SerializeToString()
    assert not inline_branch(model.graph, "use_cache")
    assert model.SerializeToString() == before


def test_a_graph_without_branches_is_not_changed() -> None:
    model = model_of(MERGED)
    assert not inline_branch(model.graph, "another")
