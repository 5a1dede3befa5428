"""The state of every attention layer, from the ports and the operators that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_ports import DecoderPorts
from tokenmill.package.flow import Flow
from tokenmill.package.model_package import AttentionState, Port, StateContract, StateLayout
from tokenmill.package.onnx_file import Node, OnnxFile
from tokenmill.package.projection import key_head_dim
from tokenmill.package.state_pairs import (
    ATTENTION,
    GROUP_QUERY,
    MASKED_MULTI_HEAD,
    MULTI_HEAD,
    SCATTER,
    STATE_DTYPES,
    StatePair,
    find_pairs,
)

_HEADS = {
    GROUP_QUERY: "kv_num_heads",
    ATTENTION: "kv_num_heads",
    MULTI_HEAD: "num_heads",
    MASKED_MULTI_HEAD: "num_heads",
}
"""The attribute that tells how many heads the state has."""

Quad = tuple[Port, Port, Port, Port]


class Geometry(NamedTuple):
    """What a document says of the state's sizes. None: nothing.

    Attributes:
        num_kv_heads, head_dim: of every layer.
        evidence: file and field of each, for messages.
        firm: the document means them; else they are guesses for where the graph is silent.
    """

    num_kv_heads: int | None = None
    head_dim: int | None = None
    evidence: tuple[str, str] = ("", "")
    firm: bool = True


class _Sizes(NamedTuple):
    """One layer as the graph tells it; None where it does not."""

    heads: int | None
    dim: int | None
    capacity: int | None
    window: int | None
    layout: StateLayout


def read_layout(
    graph: OnnxFile, ports: DecoderPorts, *, declared: Geometry, settle: str
) -> StateContract:
    """Returns the decoder's state. Sizes come from the graph where it tells them.

    Args:
        settle: file and field to name where a size is missing.

    Raises:
        InvalidPackage: sizes that contradict each other, or that nobody tells.
        UnsupportedModel: state of a type, or kept in a way, that is not executed.
    """
    flow = Flow(graph)
    pairs = {pair.past: pair for pair in find_pairs(flow)}
    layers = []
    for layer, quad in enumerate(ports.state):
        _check_types(graph, quad)
        layers.append(_layer(graph, flow, layer, quad, pairs))
    layouts = {sizes.layout for sizes in layers}
    if layouts == {StateLayout.SHARED_BUFFER, StateLayout.PLAIN}:
        # What writes in place takes a past that is handed over as well.
        layouts = {StateLayout.PLAIN}
    if len(layouts) > 1:
        kinds = ", ".join(sorted(layout.value for layout in layouts))
        raise UnsupportedModel(
            f"the layers of {graph.path.name} keep their state in different ways",
            why=f"there are {kinds}",
        )
    _check_declared(graph, layers, declared)
    attention = []
    for layer, sizes in enumerate(layers):
        key = ports.state[layer][0]
        heads = _told(graph, key, "num_kv_heads", sizes.heads, declared.num_kv_heads, settle)
        dim = _told(graph, key, "head_dim", sizes.dim, declared.head_dim, settle)
        attention.append(AttentionState(layer, heads, dim, key.dtype, sizes.window))
    capacities = {sizes.capacity for sizes in layers}
    if len(capacities) > 1:
        raise InvalidPackage(
            f"the static caches of {graph.path.name} have different capacities",
            why=", ".join(sorted(str(size) for size in capacities)),
            fix="Export the package again",
        )
    capacity = capacities.pop() if capacities else None
    return StateContract(layouts.pop(), tuple(attention), capacity)


def _check_types(graph: OnnxFile, quad: Quad) -> None:
    past = quad[0]
    for port in quad:
        if port.dtype != past.dtype or len(port.shape) != len(past.shape):
            raise InvalidPackage(
                f"the ports {past.name!r} and {port.name!r} of {graph.path.name}",
                why=f"they are {past.dtype} {_shape(past)} and {port.dtype} {_shape(port)}",
                fix="State must keep its type and its axes from past to present",
            )
    if past.dtype not in STATE_DTYPES:
        raise UnsupportedModel(
            f"the port {past.name!r} of {graph.path.name} is {past.dtype}",
            why=f"state can be {', '.join(STATE_DTYPES)}",
        )


def _layer(
    graph: OnnxFile, flow: Flow, layer: int, quad: Quad, pairs: Mapping[str, StatePair]
) -> _Sizes:
    halves = [pairs.get(port.name) for port in quad[:2]]
    nodes = [pair.node for pair in halves if pair is not None and pair.node is not None]
    operators = {node.operator for node in nodes}
    readers = [pair.attention for pair in halves if pair is not None and pair.attention is not None]
    heads = _attribute_heads(readers)
    if SCATTER in operators:
        return _static(graph, quad, heads)
    _check_appended(graph, quad, nodes)
    count = _agreed(graph, quad, 1, "heads")
    if count is not None and heads is not None and count != heads:
        raise InvalidPackage(
            f"the port {quad[0].name!r} of {graph.path.name} has {count} heads",
            why=f"its operator {readers[0].name!r} has {heads}",
            fix="Export the package again",
        )
    in_place = _is_in_place(quad, readers)
    windows = {_window(node) for node in readers if node.operator == GROUP_QUERY}
    if any(node.attributes.get("kv_cache_bit_width") == 4 for node in readers):
        raise UnsupportedModel(
            f"the port {quad[0].name!r} of {graph.path.name} is {quad[0].dtype}, 4 bits a number",
            why=f"state can be {', '.join(STATE_DTYPES)}",
        )
    return _Sizes(
        heads=count if count is not None else heads,
        dim=_head_dim(graph, flow, quad, readers),
        capacity=None,
        window=windows.pop() if len(windows) == 1 else None,
        layout=StateLayout.SHARED_BUFFER if in_place else StateLayout.PLAIN,
    )


def _head_dim(graph: OnnxFile, flow: Flow, quad: Quad, readers: Sequence[Node]) -> int | None:
    """Returns what the ports tell, else the product that makes keys; they may not differ."""
    dim = _agreed(graph, quad, 3, "numbers a head")
    for node in readers:
        made = key_head_dim(flow, node)
        if made is not None and dim is not None and made != dim:
            raise InvalidPackage(
                f"the port {quad[0].name!r} of {graph.path.name} has {dim} numbers a head",
                why=f"its operator {node.name!r} gets keys of {made}",
                fix="Export the package again",
            )
        dim = made if dim is None else dim
    return dim


def _check_appended(graph: OnnxFile, quad: Quad, nodes: Sequence[Node]) -> None:
    key = quad[0]
    if len(key.shape) != 4:
        raise UnsupportedModel(
            f"the port {key.name!r} of {graph.path.name}",
            why=f"it is {_shape(key)}, not [batch, heads, tokens, dimension]",
        )
    for node in nodes:
        axis = node.attributes.get("axis")
        if node.operator == "Concat" and axis not in (2, -2):
            raise UnsupportedModel(
                f"{node.name!r} of {graph.path.name} appends to {key.name!r} along axis {axis}",
                why="state is read as [batch, heads, tokens, dimension], tokens on axis 2",
            )


def _is_in_place(quad: Quad, readers: Sequence[Node]) -> bool:
    """Whether the layer's own operator reads the ports and writes them, nothing in between."""
    names = tuple(port.name for port in quad)
    return any(
        node.operator == GROUP_QUERY and (*node.inputs[3:5], *node.outputs[1:3]) == names
        for node in readers
    )


def _static(graph: OnnxFile, quad: Quad, heads: int | None) -> _Sizes:
    key = quad[0]
    if len(key.shape) == 4:
        dim, tokens = _agreed(graph, quad, 3, "numbers a head"), 2
        count = _agreed(graph, quad, 1, "heads")
        heads = count if count is not None else heads
    elif len(key.shape) == 3:
        width, tokens, dim = _agreed(graph, quad, 2, "numbers a token"), 1, None
        if width is not None and heads is not None:
            if width % heads:
                raise InvalidPackage(
                    f"the port {key.name!r} of {graph.path.name} has {width} numbers a token",
                    why=f"its attention has {heads} heads, which do not divide them",
                    fix="Export the package again",
                )
            dim = width // heads
    else:
        raise UnsupportedModel(
            f"the port {key.name!r} of {graph.path.name}",
            why=f"it is {_shape(key)}; a static cache has 3 or 4 axes",
        )
    capacity = _agreed(graph, quad, tokens, "tokens")
    return _Sizes(heads, dim, capacity, None, StateLayout.STATIC_CACHE)


def _agreed(graph: OnnxFile, quad: Quad, axis: int, of: str) -> int | None:
    """Returns the size of an axis that all four ports tell alike, None where none tells it."""
    told = {port.name: port.shape[axis] for port in quad if isinstance(port.shape[axis], int)}
    if not told:
        return None
    first = next(iter(told))
    for name, size in told.items():
        if size != told[first]:
            raise UnsupportedModel(
                f"the ports {first!r} and {name!r} of {graph.path.name}",
                why=f"one has {told[first]} {of}, the other {size}; keys and values must be alike",
            )
    size = told[first]
    return size if isinstance(size, int) and size > 0 else None


def _attribute_heads(readers: Sequence[Node]) -> int | None:
    for node in readers:
        value = node.attributes.get(_HEADS.get(node.operator, ""))
        if isinstance(value, int) and value > 0:
            return value
    return None


def _window(node: Node) -> int | None:
    value = node.attributes.get("local_window_size", -1)
    return value if isinstance(value, int) and value > 0 else None


def _check_declared(graph: OnnxFile, layers: Sequence[_Sizes], declared: Geometry) -> None:
    """Refuses a declared size that no layer of the graph has; layers may differ."""
    if not declared.firm:
        return
    for name, evidence, size, told in _facts(layers, declared):
        if told and size not in told:
            have = ", ".join(str(one) for one in sorted(told))
            raise InvalidPackage(
                f"{evidence} says that {name} is {size}",
                why=f"the state of {graph.path.name} has {have}",
                fix="Correct the field, or export the package again",
            )


def _facts(
    layers: Sequence[_Sizes], declared: Geometry
) -> Iterator[tuple[str, str, int, frozenset[int]]]:
    of_heads, of_dim = declared.evidence
    for name, evidence, size, told in (
        ("num_kv_heads", of_heads, declared.num_kv_heads, [sizes.heads for sizes in layers]),
        ("head_dim", of_dim, declared.head_dim, [sizes.dim for sizes in layers]),
    ):
        if size is not None:
            yield name, evidence, size, frozenset(one for one in told if one is not None)


def _told(
    graph: OnnxFile, key: Port, name: str, found: int | None, declared: int | None, settle: str
) -> int:
    size = found if found is not None else declared
    if size is None:
        raise InvalidPackage(
            f"nothing tells {name} of the port {key.name!r} of {graph.path.name}",
            why=f"its shape is {_shape(key)}, and no document says it",
            fix=f"Say it in {settle}, or export with fixed sizes",
        )
    return size


def _shape(port: Port) -> str:
    return f"[{', '.join(str(size) for size in port.shape)}]"
