"""Attention over a growing past becomes grouped attention over a buffer that is written in place.

All layers or none: a graph keeps its state in one way.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from onnx import GraphProto, ModelProto, NodeProto, helper

from tokenmill.backends.graph.cases import make_cases
from tokenmill.backends.graph.company import RowsDepend, check_company
from tokenmill.backends.graph.constant_shapes import constant_shapes
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluator
from tokenmill.backends.graph.grouped_attention import AttentionNodes
from tokenmill.backends.graph.inline_branch import inline_branch
from tokenmill.backends.graph.names import ancestors, drop_unused
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.own_lengths import use_lengths
from tokenmill.backends.graph.ports import DecoderPorts, StatePorts
from tokenmill.backends.graph.recognise import Attention, recognise
from tokenmill.backends.graph.rotary_tables import Folded, RotaryTables
from tokenmill.backends.graph.sites import GraphIndex, Refused, find_site
from tokenmill.backends.graph.survey import survey

_MICROSOFT = "com.microsoft"
_DIVISOR = 8
"""GroupQueryAttention of ONNX Runtime takes heads of a multiple of this."""


class Shared(NamedTuple):
    """What `share_buffers` did.

    Attributes:
        applied: all attention was rewritten; else the graph is as it was.
        notes: what was done, or why not, a phrase each.
        rows_depend: see `Rewritten`.
    """

    applied: bool
    notes: tuple[str, ...]
    rows_depend: bool


class _Layer(NamedTuple):
    ports: StatePorts
    attention: Attention
    rotation: Folded | None


def share_buffers(model: ModelProto, ports: DecoderPorts, outside: OutsideWeights) -> Shared:
    """Rewrites every layer's attention to GroupQueryAttention, or leaves the graph as it is.

    Past and present become [batch, heads, capacity, dim] buffers that may be the same memory;
    `ports.LENGTHS_INPUT` and `ports.TOTAL_INPUT` replace the attention mask, each row with a
    length of its own. Attention is recognised by what it computes, not by how it is spelled.

    Args:
        model: changed in place; without local functions.
        outside: reads the model's external weights.

    """
    graph = model.graph
    before, weights = _snapshot(graph), len(graph.initializer)
    notes: tuple[str, ...] = ()
    try:
        if ports.use_cache_branch is not None:
            if not inline_branch(graph, ports.use_cache_branch):
                raise Refused(f"no branch is steered by {ports.use_cache_branch!r} alone")
            notes = ("the branch with a past inlined",)
        evaluator = Evaluator(model, outside)
        layers, made = _recognise_all(evaluator, ports)
        rotating = sum(layer.rotation is not None for layer in layers)
        _replace(graph, layers, made)
        if rotating:
            notes = (*notes, f"rotary embedding of {rotating} layers moved into the attention")
        notes = (*notes, *use_lengths(model, ports, outside))
        check_company(model, ports, outside)
        constant_shapes(model, ports, outside)
    except Exception as error:
        # Beside what is refused: anything may be in a graph, and a fault in looking at it must
        # not keep it from running as it is.
        _restore(graph, before)
        del graph.initializer[weights:]
        expected = isinstance(error, (Refused, CannotEvaluate))
        reason = str(error) if expected else f"it cannot be looked at ({error!r})"
        notes = (f"attention stays plain: {reason}",)
        return Shared(False, notes, rows_depend=isinstance(error, RowsDepend))
    _settle_ports(model, ports)
    return Shared(True, (_describe(layers), *notes), rows_depend=False)


def _recognise_all(
    evaluator: Evaluator, ports: DecoderPorts
) -> tuple[list[_Layer], AttentionNodes]:
    """Returns the layers, and the nodes that take the place of their attention."""
    index, cases = GraphIndex(evaluator.graph), make_cases(evaluator, ports)
    made = AttentionNodes(index, cases, ports.input_ids)
    tables = RotaryTables(evaluator, ports, index, cases)
    layers = []
    for number, layer in enumerate(ports.state):
        try:
            if layer.head_dim % _DIVISOR:
                raise Refused(f"its heads of {layer.head_dim} are no multiple of {_DIVISOR}")
            site = find_site(index, layer)
            attention = recognise(site, layer, index, cases)
            rotation = tables.fold(layer, site, attention.num_heads)
            made.add(number, layer, site, attention, rotation)
        except (Refused, CannotEvaluate) as error:
            raise Refused(f"layer {number}: {error}") from None
        layers.append(_Layer(layer, attention, rotation))
    survey([layer.attention for layer in layers], evaluator, ports, cases)
    made.constants.extend(tables.constants)
    return layers, made


def _replace(graph: GraphProto, layers: list[_Layer], made: AttentionNodes) -> None:
    """Puts the new nodes in; what is no longer needed goes."""
    taken = {name for layer in layers for name in (*layer.ports.present, layer.attention.result)}
    kept = [_without_outputs(node, taken) for node in graph.node]
    del graph.node[:]
    graph.node.extend(node for node in kept if any(node.output))
    graph.node.extend(made.nodes)
    graph.initializer.extend(made.constants)
    drop_unused(graph)


def _without_outputs(node: NodeProto, names: set[str]) -> NodeProto:
    for i, name in enumerate(node.output):
        if name in names:
            node.output[i] = ""
    return node


def _settle_ports(model: ModelProto, ports: DecoderPorts) -> None:
    graph = model.graph
    _, needed = ancestors(graph, [port.name for port in graph.output])
    past = {name for layer in ports.state for name in layer.past}
    present = {name for layer in ports.state for name in layer.present}
    inputs = [port for port in graph.input if port.name in needed]
    del graph.input[:]
    graph.input.extend(inputs)
    for port in [*graph.input, *graph.output]:
        if port.name in past | present:
            dims = port.type.tensor_type.shape.dim
            dims[2].ClearField("dim_value")
            dims[2].dim_param = "capacity"
    # Sizes that were noted for the growing state no longer hold.
    del graph.value_info[:]
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name not in needed:
            del graph.initializer[i]
    if not any(opset.domain == _MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))


def _describe(layers: list[_Layer]) -> str:
    text = f"attention of {len(layers)} layers rewritten to shared buffers"
    windows = Counter(layer.attention.window for layer in layers)
    for window, count in windows.items():
        if window is not None:
            text += f", {count} with a window of {window}"
    return text


def _snapshot(graph: GraphProto) -> GraphProto:
    """Returns everything but the weights."""
    copy = GraphProto()
    copy.node.extend(graph.node)
    copy.input.extend(graph.input)
    copy.output.extend(graph.output)
    return copy


def _restore(graph: GraphProto, before: GraphProto) -> None:
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(before.node)
    graph.input.extend(before.input)
    graph.output.extend(before.output)
