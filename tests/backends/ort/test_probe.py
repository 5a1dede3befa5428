from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import NodeProto, helper

from support.plain_layer import PARTS, PORTS, save_layer
from tokenmill.backends.graph.apply import apply_rewrites
from tokenmill.backends.graph.rewrite import Probe, rewrite
from tokenmill.backends.ort.probe import compare, make_probe

WINDOW = {
    "mask": """
        causal = LessOrEqual(tokens, queries)
        first = Sub(queries, four)
        near = Greater(tokens, first)
        both = And(causal, near)
        allowed = And(both, unpadded)
        bias = Where(allowed, zero_f, lowest)
    """
}


def changed(graph: bytes, name: str, value: float | int) -> bytes:
    """Returns the graph with another attribute in its attention."""
    model = onnx.ModelProto.FromString(graph)
    node: NodeProto = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return model.SerializeToString()


def rewritten(file: Path) -> bytes:
    graph = apply_rewrites(file.read_bytes(), PORTS, file).graph
    assert graph is not None
    return graph


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 0.36), ("softcap", 3.0), ("local_window_size", 5), ("local_window_size", 3)],
)
def test_an_attention_of_another_kind_is_noticed(name: str, value: float, tmp_path: Path) -> None:
    file = save_layer(tmp_path, **WINDOW)
    graph = rewritten(file)
    assert compare(file, graph, PORTS) is None
    difference = compare(file, changed(graph, name, value), PORTS)
    assert difference is not None
    assert difference.startswith("rewritten, logits differ by ")


def test_positions_of_another_row_are_noticed(tmp_path: Path) -> None:
    embed = """
        e = Gather(embedding, input_ids)
        p = Shape<start = 2, end = 3>(past_k)
        p0 = Squeeze(p)
        t = Shape<start = 1, end = 2>(attention_mask)
        t0 = Squeeze(t)
        r = Range(p0, t0, one0)
        r1 = Unsqueeze(r, zero)
        place = Gather(places, r1)
        x = Add(e, place)
    """
    file = save_layer(tmp_path, embed=embed)
    model = onnx.ModelProto.FromString(rewritten(file))
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "tokenmill.seqlens_k" and node.op_type == "Cast":
                node.input[i] = "tokenmill.longest"
    graph = model.graph
    one = helper.make_node("Sub", ["tokenmill.total_sequence_length", "one32"], ["longest0"])
    shape = helper.make_node("Shape", ["tokenmill.seqlens_k"], ["batch"])
    spread = helper.make_node("Expand", ["longest0", "batch"], ["tokenmill.longest"])
    graph.initializer.append(helper.make_tensor("one32", onnx.TensorProto.INT32, [], [1]))
    nodes = [one, shape, spread, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    difference = compare(file, model.SerializeToString(), PORTS)
    assert difference is not None


def test_a_graph_that_does_not_run_is_noticed(tmp_path: Path) -> None:
    file = save_layer(tmp_path)
    difference = compare(file, changed(rewritten(file), "kv_num_heads", 3), PORTS)
    assert difference is not None
    assert difference.startswith("the rewritten graph does not run: ")


def test_a_file_that_does_not_run_is_no_measure(tmp_path: Path) -> None:
    file = save_layer(tmp_path)
    graph = rewritten(file)
    model = onnx.load(file)
    next(n for n in model.graph.node if n.op_type == "Softmax").op_type = "Softmix"
    onnx.save(model, file)
    difference = compare(file, graph, PORTS)
    assert difference is not None
    assert difference.startswith("the file itself does not run: ")


def test_a_rewrite_that_differs_is_dropped_and_that_is_kept(tmp_path: Path) -> None:
    file, asked = save_layer(tmp_path), []

    def differs(*args: object) -> str:
        asked.append(args)
        return "they differ"

    for _ in range(2):
        result = rewrite(file, PORTS, tmp_path / "cache", Probe("1", differs))
        assert (result.shares_buffers, result.notes) == (
            False,
            ("attention stays plain: they differ",),
        )
        assert result.graph is not None
        inputs = {port.name for port in onnx.ModelProto.FromString(result.graph).graph.input}
        assert "attention_mask" in inputs
    assert len(asked) == 1
    rewrite(file, PORTS, tmp_path / "cache", Probe("2", differs))
    assert len(asked) == 2


def test_a_rewrite_that_agrees_is_compared_once(tmp_path: Path) -> None:
    file, asked = save_layer(tmp_path), []
    probe = make_probe()

    def counted(*args: object) -> str | None:
        asked.append(args)
        return probe.compare(*args)

    results = [
        rewrite(file, PORTS, tmp_path / "cache", probe._replace(compare=counted)) for _ in range(2)
    ]
    assert results[0] == results[1]
    assert results[0].shares_buffers
    assert len(asked) == 1


def test_what_no_rewrite_shares_is_not_compared(tmp_path: Path) -> None:
    repeat = PARTS["repeat"].replace("repeated", "tiled")

    def never(*args: object) -> str | None:
        raise AssertionError

    result = rewrite(save_layer(tmp_path, repeat=repeat), PORTS, None, Probe("1", never))
    assert not result.shares_buffers
