"""A decoder's graph as read from a directory: its ports in their roles, and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.decoder_ports import DecoderPorts
from tokenmill.package.decoder_state import Geometry, read_layout
from tokenmill.package.external_data import check_external_data
from tokenmill.package.flow import KEEPING, RESHAPING, Flow, Value
from tokenmill.package.model_package import Component, Ignored, Role, StateContract
from tokenmill.package.onnx_file import Initializer, Node, OnnxFile, read_onnx
from tokenmill.package.output_signals import embedding_rows, output_width
from tokenmill.package.roles import Declaration, resolve_ports
from tokenmill.package.state_pairs import GROUP_QUERY
from tokenmill.package.wiring import check_wiring


@dataclass(frozen=True, slots=True)
class Limit:
    """Most tokens of a sequence, and what says so."""

    tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class DecoderGraph:
    """The graph, its ports in their roles, and its state."""

    graph: OnnxFile
    ports: DecoderPorts
    state: StateContract

    @property
    def component(self) -> Component:
        """The graph as a package's decoder."""
        return Component(
            name="decoder",
            file=self.graph.path,
            bindings=self.ports.bindings,
            operators=self.graph.operators,
            weight_bytes=self.graph.weight_bytes,
        )

    def vocab_size(self, declared: int | None, evidence: str) -> int:
        """Returns the width of the logits.

        Args:
            declared: what a document says; None for nothing.
            evidence: file and field of that, or where it could be said.

        Raises:
            InvalidPackage: fewer logits than declared, or nobody tells.
        """
        flow, name = Flow(self.graph), self.graph.path.name
        width = output_width(flow, self.ports.logits)
        if width is not None and declared is not None and width < declared:
            raise InvalidPackage(
                f"{evidence} is {declared}",
                why=f"the port {self.ports.logits.name!r} of {name} has {width} logits",
                fix="Correct the field, or export the package again",
            )
        size = width if width is not None else declared
        if size is None:
            rows = embedding_rows(flow)
            size = next(iter(rows)) if len(rows) == 1 else None
        if size is None:
            raise InvalidPackage(
                f"nothing tells how many logits {name} has",
                why=f"the last axis of {self.ports.logits.name!r} is symbolic",
                fix=f"Say it in {evidence}",
            )
        return size

    def limits(self) -> tuple[Limit, ...]:
        """Returns what the graph itself says of the length of sequences, strictest first."""
        found = list(_tables(Flow(self.graph), self.ports))
        if self.state.capacity is not None:
            found.append(Limit(self.state.capacity, "the capacity of the static cache"))
        return tuple(sorted(found, key=lambda limit: limit.tokens))

    def shortened(self, declared: int, evidence: str) -> tuple[int, tuple[Ignored, ...]]:
        """Returns the most tokens, and a note where the graph allows fewer than are declared."""
        limits = self.limits()
        if not limits or limits[0].tokens >= declared:
            return declared, ()
        why = f"the graph allows {limits[0].tokens}: {limits[0].why}"
        return limits[0].tokens, (Ignored(evidence, str(declared), why),)


Declare = Callable[[OnnxFile], Sequence[Declaration]]
"""Gives what a document says of a graph's ports."""

_PORTS = "an inference_metadata.yaml beside it, model.io"
"""Where ports could be named: neither config.json nor a bare graph has a place for that."""


def _nothing(graph: OnnxFile) -> Sequence[Declaration]:
    return ()


def read_decoder(
    root: Path,
    file: Path,
    geometry: Geometry,
    settle: str,
    declare: Declare = _nothing,
    *,
    ports_settle: str = _PORTS,
) -> DecoderGraph:
    """Reads a graph and resolves its ports.

    Args:
        root: the package's directory.
        geometry: what a document says of the state's sizes.
        settle: the document to name where a size cannot be told.
        declare: what a document says of the ports.
        ports_settle: file and field to name where a port's role cannot be told.

    Raises:
        InvalidPackage, UnsupportedModel: see `resolve_ports` and `read_layout`.
    """
    graph = read_onnx(file)
    check_external_data(graph, root)
    check_wiring(graph)
    ports = resolve_ports(graph, declare(graph), settle=ports_settle)
    return DecoderGraph(graph, ports, read_layout(graph, ports, declared=geometry, settle=settle))


def _tables(flow: Flow, ports: DecoderPorts) -> Iterator[Limit]:
    """Yields the rows of each table that positions index."""
    tokens = next(one.port.name for one in ports.bindings if one.role is Role.INPUT_IDS)
    seen = set()
    for node in flow.graph.nodes:
        slot = _cosines(node)
        if slot is None and node.operator == "Gather":
            index = flow.operand(node, 1)
            if index is None or flow.is_constant(index) or _is_port(flow, index, tokens):
                continue
            slot = 0
        table = None if slot is None else _longest(flow, flow.operand(node, slot))
        if table is not None and table.name not in seen:
            seen.add(table.name)
            yield Limit(table.dims[0], f"the rows of the table of positions {table.name!r}")


def _longest(flow: Flow, value: Value | None) -> Initializer | None:
    """Returns the table that a value is; the longest where an If chooses between several."""
    if value is None:
        return None
    weights = {tensor.name: tensor for tensor in flow.graph.initializers}
    tables = []
    for origin in flow.origins(value, KEEPING):
        table = weights.get(origin.name) if flow.maker(origin) is None else None
        if table is None or len(table.dims) != 2:
            return None
        tables.append(table)
    return max(tables, key=lambda table: table.dims[0], default=None)


def _cosines(node: Node) -> int | None:
    """Returns the input where an operator takes its table of cosines, where it indexes one."""
    if node.operator == GROUP_QUERY and node.attributes.get("do_rotary") == 1:
        return 7
    if node.operator == "com.microsoft.RotaryEmbedding":
        return 2
    if node.operator == "RotaryEmbedding" and len(node.inputs) > 3 and node.inputs[3]:
        return 1
    return None


def _is_port(flow: Flow, value: Value, name: str) -> bool:
    return any(origin.name == name for origin in flow.origins(value, RESHAPING))
