"""Graphs that share buffers as exported: do their rows depend on the longest one of a call?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.long_tables import choose_tables
from support.tiny_onnx import TinySpec, make_decoder
from tokenmill.backends.graph.ports import DecoderPorts
from tokenmill.backends.graph.rewrite import Rewritten, rewrite

PORTS = DecoderPorts(
    "logits", "attention_mask", "input_ids", "position_ids", in_place=True, context_length=256
)
APART = "only rows of one length share a call"


def looked_at(model: onnx.ModelProto, directory: Path) -> Rewritten:
    onnx.save(model, directory / "model.onnx")
    return rewrite(directory / "model.onnx", PORTS)


@pytest.mark.parametrize(
    "spec",
    [TinySpec(), TinySpec(position_ids=True), TinySpec(mask_needed=True), TinySpec(packed=True)],
    ids=["lengths", "positions", "mask", "packed"],
)
def test_rows_of_an_ordinary_graph_are_their_own(spec: TinySpec, tmp_path: Path) -> None:
    result = looked_at(make_decoder(spec), tmp_path)
    assert not result.rows_depend
    assert result.notes == ()


def test_a_table_that_is_cut_to_the_longest_row_is_the_same_for_all(tmp_path: Path) -> None:
    assert not looked_at(choose_tables("Slice"), tmp_path).rows_depend


@pytest.mark.parametrize(("by", "where"), [("If", "If"), ("Where", "GroupQueryAttention")])
def test_tables_that_the_longest_row_chooses_are_noticed(
    by: str, where: str, tmp_path: Path
) -> None:
    result = looked_at(choose_tables(by), tmp_path)
    assert result.rows_depend
    assert not result.shares_buffers
    assert result.notes == (f"rows depend on the longest one of a call, by {where}: {APART}",)


def test_it_is_known_from_the_cache_too(tmp_path: Path) -> None:
    onnx.save(choose_tables("If"), tmp_path / "model.onnx")
    first, second = (rewrite(tmp_path / "model.onnx", PORTS, tmp_path / "cache") for _ in range(2))
    assert first == second
    assert second.rows_depend


def test_what_is_made_of_attention_may_depend_on_the_longest_row(tmp_path: Path) -> None:
    model = make_decoder(TinySpec(layers=1))
    graph = model.graph
    attention = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    constants = {"threshold": np.array(20, np.int32), "one": np.array(1, np.float32)}
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    out = attention.output[0]
    attention.output[0] = "unscaled"
    nodes = [
        helper.make_node("Greater", [attention.input[6], "threshold"], ["is_long"], name="far"),
        helper.make_node("Cast", ["is_long"], ["off"], name="off", to=1),
        helper.make_node("Add", ["off", "one"], ["factor"], name="factor"),
        helper.make_node("Mul", ["unscaled", "factor"], [out], name="scaled"),
    ]
    at = list(graph.node).index(attention) + 1
    rest = list(graph.node)[at:]
    del graph.node[at:]
    graph.node.extend([*nodes, *rest])
    result = looked_at(model, tmp_path)
    assert result.rows_depend
    assert result.notes == (f"rows depend on the longest one of a call, by Mul: {APART}",)


def test_graphs_of_other_layouts_are_not_looked_at(tmp_path: Path) -> None:
    onnx.save(choose_tables("If"), tmp_path / "model.onnx")
    ports = DecoderPorts("logits", "attention_mask", "input_ids")
    assert not rewrite(tmp_path / "model.onnx", ports).rows_depend


def test_a_local_function_is_looked_into(tmp_path: Path) -> None:
    model = make_decoder(TinySpec(layers=1))
    graph = model.graph
    total = next(n for n in graph.node if n.op_type == "GroupQueryAttention").input[6]
    at = next(i for i, node in enumerate(graph.node) if total in node.output)
    graph.node[at].output[0] = "total_before"
    same = helper.make_node("Identity", ["x"], ["y"])
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "Same", ["x"], ["y"], [same], opsets)
    call = helper.make_node("Same", ["total_before"], [total], domain="own", name="same")
    rest = list(graph.node)[at + 1 :]
    del graph.node[at + 1 :]
    graph.node.extend([call, *rest])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert not looked_at(model, tmp_path).rows_depend
