"""A tiny decoder with two sets of rotary tables, chosen by the longest row of a call."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.tiny_onnx import TinySpec, make_decoder

THRESHOLD = 21
"""Calls whose longest row has more tokens take the other tables."""


def choose_tables(by: str, spec: TinySpec | None = None) -> onnx.ModelProto:
    """Returns the decoder, its tables chosen in one of several spellings.

    Args:
        by: "If", as exporters write it, "Where", or "Slice": one set, cut to the longest row.
    """
    model = make_decoder(spec or TinySpec())
    graph = model.graph
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    names = attention[0].input[7:9]
    total = attention[0].input[6]
    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer if w.name in names}
    constants: dict[str, np.ndarray] = {
        "threshold": np.array(THRESHOLD, np.int32),
        "start": np.array([0], np.int32),
    }
    nodes = [helper.make_node("Greater", [total, "threshold"], ["is_long"], name="is_long")]
    chosen = [f"{name}.chosen" for name in names]
    for name in names:
        constants[f"{name}.long"] = weights[name][::-1]
    if by == "If":
        branches = {}
        for branch, end in (("then_branch", ".long"), ("else_branch", "")):
            inner = [
                helper.make_node("Identity", [f"{name}{end}"], [f"{name}.{branch}"])
                for name in names
            ]
            infos = [
                helper.make_tensor_value_info(f"{name}.{branch}", TensorProto.FLOAT, None)
                for name in names
            ]
            branches[branch] = helper.make_graph(inner, branch, [], infos)
        nodes.append(helper.make_node("If", ["is_long"], chosen, name="If", **branches))
    elif by == "Where":
        nodes += [
            helper.make_node("Where", ["is_long", f"{name}.long", name], [new], name=new)
            for name, new in zip(names, chosen, strict=True)
        ]
    else:
        nodes.append(helper.make_node("Reshape", [total, "one_number"], ["end"], name="end"))
        constants["one_number"] = np.array([1], np.int64)
        nodes += [
            helper.make_node("Slice", [name, "start", "end"], [new], name=new)
            for name, new in zip(names, chosen, strict=True)
        ]
    for node in attention:
        node.input[7], node.input[8] = chosen
    at = max(i for i, node in enumerate(graph.node) if total in node.output) + 1
    rest = list(graph.node)[at:]
    del graph.node[at:]
    graph.node.extend([*nodes, *rest])
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model
