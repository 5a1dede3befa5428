"""The state of every attention layer: what the configuration, the ports and the operators say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_ports import DecoderPorts
from tokenmill.package.document import Section
from tokenmill.package.flow import Flow
from tokenmill.package.model_package import (
    AttentionState,
    Ignored,
    Port,
    StateContract,
    StateLayout,
)
from tokenmill.package.onnx_file import Node, OnnxFile
from tokenmill.package.projection import key_head_dim

_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8")
_IN_PLACE = "com.microsoft.GroupQueryAttention"


@dataclass(frozen=True, slots=True)
class _InPlace:
    """An operator that reads the past and writes the present of one layer in one buffer."""

    num_kv_heads: int
    window: int
    cache_bits: int
    num_heads: int
    head_dim: int | None


def read_state(
    graph: OnnxFile, ports: DecoderPorts, decoder: Section
) -> tuple[StateContract, tuple[Ignored, ...]]:
    """Returns the decoder's state, and what was left out of it.

    Sizes come from the graph where it tells them, else from the configuration. The state is
    shared in place where every layer's own operator allows it, whatever `search` says.

    Args:
        decoder: the section "model.decoder" of genai_config.json.

    Raises:
        InvalidPackage: sizes that contradict each other, or that nobody tells.
        UnsupportedModel: state of a type, or a kind of window, that is not executed.
    """
    operators = _operators(graph)
    heads = decoder.integer("num_key_value_heads", low=1)
    head_dim = decoder.integer("head_size", low=1)
    layers = []
    for layer, state in enumerate(ports.state):
        key = state[0]
        operator = operators.get(tuple(port.name for port in state))
        _check(graph, key, operator)
        count = _agreed(decoder, "num_key_value_heads", heads, state, axis=1)
        if operator is not None and operator.num_kv_heads not in (0, count):
            raise InvalidPackage(
                f"the port {key.name!r} of {graph.path.name} has {count} heads",
                why=f"its operator's attribute kv_num_heads is {operator.num_kv_heads}",
                fix="Export the package again",
            )
        size = _agreed(decoder, "head_size", head_dim, state, axis=3)
        if operator is not None and operator.head_dim not in (None, size):
            why = f"it is {size}, but the keys of layer {layer} have {operator.head_dim} a head"
            raise decoder.wrong("head_size", f"{why} in {graph.path.name}")
        layers.append(
            AttentionState(
                layer=layer,
                num_kv_heads=count,
                head_dim=size,
                dtype=key.dtype,
                sliding_window=operator.window or None if operator is not None else None,
            )
        )
    _check_heads(decoder, graph, {operator.num_heads for operator in operators.values()})
    shared = all(tuple(port.name for port in state) in operators for state in ports.state)
    layout = StateLayout.SHARED_BUFFER if shared else StateLayout.PLAIN
    return StateContract(layout, tuple(layers)), _windows(decoder, layers)


def _check_heads(decoder: Section, graph: OnnxFile, found: Collection[int]) -> None:
    """Refuses a number of heads that no layer has; layers may differ."""
    heads = decoder.integer("num_attention_heads", low=1)
    if heads is not None and found and heads not in found:
        have = ", ".join(str(count) for count in sorted(found))
        why = f"it is {heads}, but the attention of {graph.path.name} has {have}"
        raise decoder.wrong("num_attention_heads", why)


def _operators(graph: OnnxFile) -> Mapping[tuple[str, ...], _InPlace]:
    """Returns operators by the names of past key, past value, present key and present value."""
    flow = Flow(graph)
    return {
        (*node.inputs[3:5], *node.outputs[1:3]): _InPlace(
            _integer(node, "kv_num_heads"),
            max(0, _integer(node, "local_window_size")),
            _integer(node, "kv_cache_bit_width"),
            _integer(node, "num_heads"),
            key_head_dim(flow, node),
        )
        for node in graph.nodes
        if node.operator == _IN_PLACE
    }


def _integer(node: Node, name: str) -> int:
    value = node.attributes.get(name, 0)
    return value if isinstance(value, int) else 0


def _check(graph: OnnxFile, key: Port, operator: _InPlace | None) -> None:
    if len(key.shape) != 4:
        raise InvalidPackage(
            f"the port {key.name!r} of {graph.path.name}",
            why=f"it has {len(key.shape)} axes, not [batch, heads, tokens, dimension]",
        )
    if key.dtype not in _DTYPES or (operator is not None and operator.cache_bits == 4):
        bits = ", 4 bits a number" if key.dtype in _DTYPES else ""
        raise UnsupportedModel(
            f"the port {key.name!r} of {graph.path.name} is {key.dtype}{bits}",
            why=f"state can be {', '.join(_DTYPES)}",
        )


def _agreed(
    section: Section, name: str, declared: int | None, state: tuple[Port, ...], axis: int
) -> int:
    for port in state:
        of_graph = port.shape[axis]
        if isinstance(of_graph, int):
            if declared is not None and declared != of_graph:
                raise section.wrong(
                    name, f"it is {declared}, but the port {port.name!r} has {of_graph}"
                )
            return of_graph
    if declared is None:
        raise section.wrong(name, f"it is missing, and the port {state[0].name!r} does not tell it")
    return declared


def _windows(decoder: Section, layers: list[AttentionState]) -> tuple[Ignored, ...]:
    """Checks `sliding_window`: the runtime's own windows change results, the graph's do not."""
    if "sliding_window" not in decoder:
        return ()
    section = decoder.section("sliding_window")
    size = section.integer("window_size", low=1)
    chosen = section.integers("layers")
    for name in ("slide_key_value_cache", "slide_inputs"):
        if section.boolean(name) is not False:
            raise UnsupportedModel(
                f"{section.evidence(name)} is {'true' if name in section else 'not false'}",
                why="this version does not cut prompts or state into windows",
            )
    for layer in chosen or range(len(layers)):
        window = layers[layer].sliding_window if 0 <= layer < len(layers) else None
        if window != size:
            raise UnsupportedModel(
                f"{section.evidence('window_size')} is {size} for layer {layer}",
                why=f"the graph's own attention there has {window or 'no window'}",
            )
    if "cache_slack" not in section:
        return ()
    slack = str(section.raw("cache_slack"))
    why = "state is kept whole; the graph itself looks back at the window only"
    return (Ignored(section.evidence("cache_slack"), slack, why),)
