"""A decoder's inputs for a few small steps, on which its graph is evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, helper

from tokenmill.backends.graph.evaluate import Evaluation, Evaluator
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.ports import LENGTHS_INPUT, TOTAL_INPUT, DecoderPorts
from tokenmill.backends.graph.recognise import Cases
from tokenmill.backends.graph.shape_rules import Shaped, Value

SHORT = (Case(2, 13, 4), Case(3, 5, 6), Case(1, 4, 0), Case(2, 1, 9))
"""Rows, new tokens and past tokens; no two of a case's sizes are the same. The first two have new
tokens of numbers that are seldom numbers of heads."""

_LONG = (8192, 2048, 512, 128)
_UNKNOWN_CONTEXT = 8192


def context_of(ports: DecoderPorts) -> int:
    """Returns the most tokens that a text is looked at with."""
    return ports.context_length or _UNKNOWN_CONTEXT


def sizes_of(ports: DecoderPorts) -> tuple[Case, ...]:
    """Returns `SHORT`, and a row as long as there may be: it shows what only holds for a while."""
    context = context_of(ports)
    if context <= max(case.total for case in SHORT):
        return SHORT
    return (*SHORT, Case(1, 2, context - 2))


def make_cases(evaluator: Evaluator, ports: DecoderPorts) -> Cases:
    """Returns the graph evaluated for several inputs, lazily."""

    def at(case: Case) -> tuple[Case, Evaluation]:
        return case, Evaluation(evaluator, feeds(evaluator.graph, ports, case))

    context = context_of(ports)
    lengths = [context, *(length for length in _LONG if length < context)]
    # Two new tokens, so that a mask of blocks is not taken for a window.
    long = [Case(1, 2, length - 2) for length in lengths if length > SHORT[0].total]
    return Cases([at(case) for case in SHORT], [at(case) for case in long])


def feeds(graph: GraphProto, ports: DecoderPorts, case: Case) -> Mapping[str, Value]:
    """Returns the inputs of a step in which all rows are as long. State is only shaped."""
    rng = np.random.default_rng(case.total)
    dtypes = {
        port.name: np.dtype(helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type))
        for port in graph.input
    }
    found: dict[str, Value] = {}
    positions = np.arange(case.past, case.total)
    for name, array in (
        (ports.input_ids, rng.integers(0, 8, (case.batch, case.new))),
        (ports.attention_mask, np.ones((case.batch, case.total))),
        (ports.position_ids, np.broadcast_to(positions, (case.batch, case.new))),
        (LENGTHS_INPUT, np.full(case.batch, case.total - 1)),
        (TOTAL_INPUT, np.array(case.total)),
    ):
        if name in dtypes:
            assert name is not None, "no input is called None"
            found[name] = array.astype(dtypes[name])
    if ports.use_cache_branch in dtypes:
        assert ports.use_cache_branch is not None, "no input is called None"
        found[ports.use_cache_branch] = np.array([True])
    for layer in ports.state:
        shape = case.batch, layer.num_kv_heads, case.past, layer.head_dim
        found.update({name: Shaped(dtypes[name], shape) for name in layer.past})
    return found
