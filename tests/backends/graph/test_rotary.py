"""Rotary embedding that attention takes over, and what is left in the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from support.plain_layer import NO_MASK, NO_POSITIONS, ports_of
from support.tiny_plain import PlainSpec, make_plain
from tokenmill.backends.graph.apply import apply_rewrites
from tokenmill.backends.graph.evaluate import Evaluation, Evaluator
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.rewritten import Rewritten
from tokenmill.backends.graph.rotary import Rotation, find_rotation, read_table
from tokenmill.backends.graph.sites import GraphIndex
from tokenmill.backends.ort.probe import compare

MOVED = "rotary embedding of 2 layers moved into the attention"
CASE = Case(1, 5, 2)
ANGLES = np.outer(np.arange(2, 7), 100.0 ** (-np.arange(8) / 8))

SPECS = {
    "from frequencies": PlainSpec(head_dim=16),
    "from a table": PlainSpec(head_dim=16, positions="table", kv_heads=1),
    "behind a norm": PlainSpec(head_dim=16, qk_norm=True, bias=True),
    "positions from the mask": PlainSpec(head_dim=16, names=NO_POSITIONS),
    "positions from the past": PlainSpec(head_dim=32, names=NO_MASK),
    "operator": PlainSpec(head_dim=16, positions="table", attention="operator"),
    "scale, cap and window": PlainSpec(head_dim=16, scale=0.7, soft_cap=4.0, window=7),
    "as many heads as tokens": PlainSpec(head_dim=16, heads=13, kv_heads=13, hidden=16),
    "merged": PlainSpec(head_dim=16, merged=True),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_attention_rotates_by_itself(spec: PlainSpec, tmp_path: Path) -> None:
    file, ports = tmp_path / "model.onnx", ports_of(spec)
    onnx.save(make_plain(spec), file)
    result = apply_rewrites(file.read_bytes(), ports, file)
    assert MOVED in result.notes
    assert result.graph is not None
    graph = onnx.ModelProto.FromString(result.graph).graph
    assert {"Cos", "Sin", "Neg", "RotaryEmbedding"}.isdisjoint(n.op_type for n in graph.node)
    assert "position_ids" not in {port.name for port in graph.input}
    # Layers that rotate alike share their tables.
    tables = [t for t in graph.initializer if t.name.startswith("tokenmill.rotary")]
    assert [list(t.dims) for t in tables] == [[spec.context, spec.head_dim // 2]] * 2
    assert compare(file, result.graph, ports) is None


def slowed(spec: PlainSpec, file: Path, *, by_row: bool) -> Rewritten:
    """Halves the frequencies of texts beyond 40 tokens, as dynamic scaling does."""
    model = make_plain(spec)
    graph = model.graph
    product = next(
        node
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1].startswith("constant")
    )
    for name, value in (
        ("forty", 40),
        ("half", np.float32(0.5)),
        ("whole", np.float32(1)),
        ("one", [1]),
    ):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    made = [
        helper.make_node("ReduceMax", ["position_ids", "one"], ["by_row"], keepdims=1),
        helper.make_node("ReduceMax", ["position_ids"], ["of_all"], keepdims=0),
        helper.make_node("Unsqueeze", ["by_row", "one"], ["by_row3"]),
        helper.make_node("Greater", ["by_row3" if by_row else "of_all", "forty"], ["is_far"]),
        helper.make_node("Where", ["is_far", "half", "whole"], ["slower"]),
        helper.make_node("Mul", [product.input[0], "slower"], ["slowed"]),
    ]
    at = list(graph.node).index(product)
    product.input[0] = "slowed"
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes[:at], *made, *nodes[at:]])
    onnx.save(model, file)
    return apply_rewrites(file.read_bytes(), ports_of(spec), file)


def test_a_rotation_that_depends_on_the_length_stays_in_the_graph(tmp_path: Path) -> None:
    spec, file = PlainSpec(head_dim=16), tmp_path / "model.onnx"
    result = slowed(spec, file, by_row=True)
    assert result.notes == ("attention of 2 layers rewritten to shared buffers",)
    assert result.graph is not None
    assert compare(file, result.graph, ports_of(spec)) is None


def test_a_rotation_that_depends_on_other_rows_is_refused(tmp_path: Path) -> None:
    result = slowed(PlainSpec(head_dim=16), tmp_path / "model.onnx", by_row=False)
    assert result.notes == (
        "attention stays plain: rows depend on the longest one of a call, by GroupQueryAttention",
    )


def test_queries_that_are_scaled_late_in_a_text_stay_in_the_graph(tmp_path: Path) -> None:
    spec, file = PlainSpec(head_dim=16), tmp_path / "model.onnx"
    model = make_plain(spec)
    graph = model.graph
    for name, value in (
        ("forty", 40),
        ("twice", np.float32(2)),
        ("whole", np.float32(1)),
        ("axes", [1, 3]),
    ):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    nodes = [
        helper.make_node("Greater", ["position_ids", "forty"], ["is_late"]),
        helper.make_node("Where", ["is_late", "twice", "whole"], ["factor"]),
        helper.make_node("Unsqueeze", ["factor", "axes"], ["factor4"]),
    ]
    turned = {node.output[0] for node in graph.node if node.op_type == "Transpose"}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in turned:
            query, node.input[0] = node.input[0], f"{node.name}.query"
            nodes.append(helper.make_node("Mul", [query, "factor4"], [node.input[0]]))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, file)
    result = apply_rewrites(file.read_bytes(), ports_of(spec), file)
    assert result.notes == ("attention of 2 layers rewritten to shared buffers",)


def rotation_of(body: str, width: int = 16) -> tuple[Rotation | None, Evaluation]:
    """Evaluates `y` [1, heads, tokens, width] of `x`, both of 2 heads."""
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        rotate (float[1, 2, 5, {width}] x) => (float[1, 2, 5, {width}] y) {{ {body} }}
    """)
    for name, array in (
        ("cos", np.cos(ANGLES)),
        ("sin", np.sin(ANGLES)),
        ("two", np.float32(2)),
        ("cos2", np.repeat(np.cos(ANGLES), 2, axis=1)),
        ("sin2", np.repeat(np.sin(ANGLES), 2, axis=1)),
    ):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(array), name))
    for name, value in (("i0", 0), ("i1", 1), ("i2", 2), ("i8", 8), ("i16", 16), ("end", 2**62)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    x = np.ones((1, 2, 5, width), np.float32)
    evaluation = Evaluation(Evaluator(model, OutsideWeights(Path())), {"x": x})
    found = find_rotation("y", 2, width, GraphIndex(model.graph), CASE, evaluation)
    return found, evaluation


HALVES = """
    a = Slice(x, i0, i8, last)
    b = Slice(x, i8, i16, last)
    ac = Mul(a, cos)  bs = Mul(b, sin)  left = Sub(ac, bs)
    as = Mul(a, sin)  bc = Mul(b, cos)  right = Add(as, bc)
""".replace("last", "i3")


def halves(rest: str) -> str:
    return "i3 = Constant<value_ints = [3]>()" + HALVES + rest


def test_halves_and_a_factor_are_found() -> None:
    body = halves("whole = Concat<axis = 3>(left, right) y = Mul(whole, two)")
    found, evaluation = rotation_of(body)
    assert found is not None
    assert (found.source, found.width, found.is_interleaved) == ("x", 16, False)
    assert np.allclose(found.cos, 2 * np.cos(ANGLES), atol=1e-5)
    assert np.allclose(found.sin, 2 * np.sin(ANGLES), atol=1e-5)
    table = read_table("y", found, 2, 16, CASE, evaluation)
    assert table is not None
    assert np.allclose(table, [found.cos, found.sin], atol=1e-5)


def test_the_rest_of_a_head_is_not_rotated() -> None:
    body = halves("rest = Slice(x, i16, end, i3) y = Concat<axis = 3>(left, right, rest)")
    found, _ = rotation_of(body, width=24)
    assert found is not None
    assert (found.width, found.is_interleaved, round(found.rest, 5)) == (16, False, 1.0)


def test_neighbours_are_found() -> None:
    body = """
        i3 = Constant<value_ints = [3]>()
        even = Slice(x, i0, end, i3, i2)
        odd = Slice(x, i1, end, i3, i2)
        minus = Neg(odd)
        i4 = Constant<value_ints = [4]>()
        m4 = Unsqueeze(minus, i4)
        e4 = Unsqueeze(even, i4)
        pairs = Concat<axis = 4>(m4, e4)
        turned = Reshape(pairs, whole_shape)
        xc = Mul(x, cos2)
        ts = Mul(turned, sin2)
        y = Add(xc, ts)
    """.replace("whole_shape", "s").replace(
        "i3 =", "s = Constant<value_ints = [0, 0, 0, 16]>() i3 =", 1
    )
    found, _ = rotation_of(body)
    assert found is not None
    assert (found.width, found.is_interleaved) == (16, True)
    assert np.allclose(found.sin, np.sin(ANGLES), atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(x, two)",
        halves("y = Concat<axis = 3>(right, left)"),
        halves("whole = Concat<axis = 3>(left, right) y = Mul(whole, x)"),
    ],
    ids=["no rotation", "halves in another order", "no linear function"],
)
def test_anything_else_is_no_rotation(body: str) -> None:
    assert rotation_of(body)[0] is None


def test_rounder_numbers_are_not_read(tmp_path: Path) -> None:
    spec = PlainSpec(head_dim=16, dtype="float16")
    file = tmp_path / "model.onnx"
    onnx.save(make_plain(spec), file)
    result = apply_rewrites(file.read_bytes(), ports_of(spec), file)
    assert result.notes == ("attention of 2 layers rewritten to shared buffers",)
    assert TensorProto.FLOAT16 in {
        port.type.tensor_type.elem_type
        for port in onnx.ModelProto.FromString(result.graph or b"").graph.input
    }
