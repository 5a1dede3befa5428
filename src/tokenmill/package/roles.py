"""Every port of a decoder in its role: by declaration, then by structure, then by name.

A role that a document declares holds. Where none does, the operators that a port meets tell what
it is for, if only one port can be meant. A port's conventional name counts where that leaves
several, and where the graph does not tell. What is still open then is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_ports import DecoderPorts
from tokenmill.package.flow import Flow
from tokenmill.package.input_signals import InputSignals
from tokenmill.package.model_package import Ignored, Port, PortBinding, Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.output_signals import find_logits
from tokenmill.package.state_layers import StateLayer, find_layers
from tokenmill.package.state_pairs import FLOATS, StatePair, find_pairs

_PAST = (Role.PAST_KEY, Role.PAST_VALUE)
_PRESENT = (Role.PRESENT_KEY, Role.PRESENT_VALUE)
_OUTPUTS = (Role.LOGITS, Role.HIDDEN_STATES, *_PRESENT)
_INTEGERS = ("int32", "int64")
_DTYPES: Mapping[Role, tuple[str, ...]] = {
    Role.INPUT_IDS: _INTEGERS,
    Role.ATTENTION_MASK: (*_INTEGERS, "bool", *FLOATS),
    Role.POSITION_IDS: _INTEGERS,
    Role.WRITE_INDICES: _INTEGERS,
    Role.KV_LENGTHS: _INTEGERS,
    Role.USE_CACHE_BRANCH: ("bool",),
    Role.LOGITS: FLOATS,
    Role.HIDDEN_STATES: FLOATS,
}
_RANKS: Mapping[Role, int] = {
    Role.INPUT_IDS: 2,
    Role.ATTENTION_MASK: 2,
    Role.POSITION_IDS: 2,
    Role.WRITE_INDICES: 1,
    Role.KV_LENGTHS: 1,
    Role.LOGITS: 3,
}


class Declaration(NamedTuple):
    """What a document says of one port.

    Attributes:
        layer: for state, counted from 0; None for other roles, and where it is left to the graph.
        why: file and field.
    """

    role: Role
    name: str
    layer: int | None
    why: str


def resolve_ports(graph: OnnxFile, declared: Sequence[Declaration], *, settle: str) -> DecoderPorts:
    """Gives every input a role, and every output that the decoder needs.

    Args:
        declared: what a document says; may be empty.
        settle: file and field that would settle an ambiguity, e.g. "config.json".

    Raises:
        InvalidPackage: a declared port that the graph lacks or contradicts, an input without a
            role, a role that several ports could have; port and field are named.
        UnsupportedModel: a graph without state, or with inputs that are not fed.
    """
    return _Resolution(graph, declared, settle).resolve()


class _Resolution:
    """The roles found so far."""

    def __init__(self, graph: OnnxFile, declared: Sequence[Declaration], settle: str) -> None:
        self._graph, self._settle = graph, settle
        self._flow = Flow(graph)
        self._inputs = {port.name: port for port in graph.inputs}
        self._outputs = {port.name: port for port in graph.outputs}
        self._bound: dict[tuple[str, bool], PortBinding] = {}
        self._repeats: dict[str, str] = {}
        self._declared = [self._checked(one) for one in declared]

    def resolve(self) -> DecoderPorts:
        self._refuse_repeated()
        for one in self._declared:
            if one.role not in (*_PAST, *_PRESENT):
                self._bind(one.role, None, one.name, one.why)
        layers = self._layers()
        logits = self._logits()
        self._bind_inputs(logits)
        self._require(Role.INPUT_IDS)
        for port in self._graph.inputs:
            if (port.name, True) not in self._bound:
                raise self._without_role(port)
        if not layers:
            raise UnsupportedModel(
                f"{self._graph.path.name} keeps no state",
                why="it has no input that an output continues: every token would cost all tokens "
                "before it again",
                fix="Export the model with past keys and values",
            )
        for binding in self._bound.values():
            self._check(binding)
        self._check_declared_inputs(logits)
        ordered = sorted(self._bound.values(), key=_order)
        return DecoderPorts(tuple(ordered), logits, layers, self._ignored())

    def _checked(self, one: Declaration) -> Declaration:
        is_input = one.role not in _OUTPUTS
        if one.name not in (self._inputs if is_input else self._outputs):
            kind = "input" if is_input else "output"
            raise InvalidPackage(
                f"{one.why} names {one.name!r}",
                why=f"{self._graph.path.name} has no {kind} called {one.name!r}",
                fix="Correct the field, or export the package again",
            )
        return one

    def _refuse_repeated(self) -> None:
        roles: dict[tuple[Role, int | None], Declaration] = {}
        ports: dict[tuple[str, bool], Declaration] = {}
        for one in self._declared:
            same_port = ports.setdefault((one.name, one.role in _OUTPUTS), one)
            is_layered = one.role in (*_PAST, *_PRESENT)
            same_role = one
            if not (is_layered and one.layer is None):
                same_role = roles.setdefault((one.role, one.layer), one)
            for other in (same_port, same_role):
                if other[:3] != one[:3]:
                    raise InvalidPackage(
                        f"{one.why} makes {one.name!r} {_role(one)}",
                        why=f"{other.why} makes {other.name!r} {_role(other)}",
                        fix="A port has one role, and a role one port",
                    )

    def _bind(self, role: Role, layer: int | None, name: str, why: str) -> None:
        is_input = role not in _OUTPUTS
        port = (self._inputs if is_input else self._outputs)[name]
        before = self._bound.get((name, is_input))
        if before is not None:
            raise InvalidPackage(
                f"{before.why} makes {name!r} {before.role.value}",
                why=f"in {self._graph.path.name} it is {role.value} ({why})",
                fix="Correct the field, or export the package again",
            )
        self._bound[name, is_input] = PortBinding(port, role, layer, why)

    def _port(self, role: Role) -> Port | None:
        for binding in self._bound.values():
            if binding.role is role and binding.layer is None:
                return binding.port
        return None

    def _require(self, role: Role) -> None:
        if self._port(role) is not None:
            return
        open_ports = [port for port in self._graph.inputs if (port.name, True) not in self._bound]
        for port in open_ports:
            if _is_hidden(port):
                raise self._without_role(port)
        names = ", ".join(repr(port.name) for port in open_ports[:6])
        raise InvalidPackage(
            f"{self._graph.path.name} has no port for {role.value}",
            why=f"no input indexes an embedding; without a role are {names or 'none'}",
            fix=f"Name it in {self._settle}",
        )

    # State

    def _layers(self) -> tuple[tuple[Port, Port, Port, Port], ...]:
        stated = [one for one in self._declared if one.role in (*_PAST, *_PRESENT)]
        if stated and all(one.layer is not None for one in stated):
            whole = self._whole(stated)
        else:
            whole = {}
        if whole:
            self._check_against_graph(whole)
        else:
            found = find_layers(self._flow, self._settle)
            whole = self._from_structure(found, stated)
        layers = []
        for layer in range(len(whole) // 4):
            roles = (*_PAST, *_PRESENT)
            for role in roles:
                name, why = whole[role, layer]
                self._bind(role, layer, name, why)
            past = tuple(self._inputs[whole[role, layer][0]] for role in _PAST)
            present = tuple(self._outputs[whole[role, layer][0]] for role in _PRESENT)
            layers.append((past[0], past[1], present[0], present[1]))
        return tuple(layers)

    def _whole(self, stated: Iterable[Declaration]) -> dict[tuple[Role, int], tuple[str, str]]:
        """Returns the declared state if it is complete: all four ports of each layer from 0."""
        named = {(one.role, one.layer or 0): (one.name, one.why) for one in stated}
        layers = {layer for _, layer in named}
        complete = layers == set(range(len(layers))) and len(named) == 4 * len(layers)
        return named if complete else {}

    def _check_against_graph(self, whole: Mapping[tuple[Role, int], tuple[str, str]]) -> None:
        by_past = {pair.past: pair for pair in find_pairs(self._flow)}
        for (role, layer), (name, why) in whole.items():
            pair = by_past.get(name) if role in _PAST else None
            if pair is None:
                continue
            half = "key" if role is Role.PAST_KEY else "value"
            if pair.half not in (None, half):
                raise InvalidPackage(
                    f"{why} says that {name!r} holds {half}s",
                    why=f"{self._graph.path.name} reads it as {pair.half}s",
                    fix="Correct the field, or export the package again",
                )
            present, why = whole[_PRESENT[_PAST.index(role)], layer]
            if present not in (pair.present, *pair.repeats):
                raise InvalidPackage(
                    f"{why} says that {present!r} continues {name!r}",
                    why=f"in {self._graph.path.name} {pair.present!r} does",
                    fix="Correct the field, or export the package again",
                )

    def _from_structure(
        self, found: Sequence[StateLayer], stated: Sequence[Declaration]
    ) -> dict[tuple[Role, int], tuple[str, str]]:
        told = {(one.name, one.role in _PRESENT): one for one in stated}
        whole = {}
        for layer, pairs in enumerate(found):
            for half, pair in enumerate(pairs):
                present = self._present(pair, told)
                for name in (pair.present, *pair.repeats):
                    if name != present:
                        self._repeats[name] = present
                for role, name in ((_PAST[half], pair.past), (_PRESENT[half], present)):
                    one = told.pop((name, role in _PRESENT), None)
                    if one is not None and (one.role is not role or one.layer not in (None, layer)):
                        raise InvalidPackage(
                            f"{one.why} makes {name!r} {_role(one)}",
                            why=f"in {self._graph.path.name} it is the {role.value} of layer "
                            f"{layer}",
                            fix="Correct the field, or export the package again",
                        )
                    whole[role, layer] = (name, one.why if one is not None else pair.why)
        for one in told.values():
            raise InvalidPackage(
                f"{one.why} makes {one.name!r} {_role(one)}",
                why=f"nothing tells what belongs to it in {self._graph.path.name}",
                fix=f"Name past and present keys and values of every layer in {self._settle}",
            )
        return whole

    def _present(self, pair: StatePair, told: Mapping[tuple[str, bool], Declaration]) -> str:
        """Returns which of several outputs with the same tensor is meant: the declared one."""
        names = (pair.present, *pair.repeats)
        return next((name for name in names if (name, True) in told), names[0])

    # The others

    def _logits(self) -> Port:
        port = self._port(Role.LOGITS)
        if port is None:
            free = [
                port
                for port in self._graph.outputs
                if (port.name, False) not in self._bound and port.name not in self._repeats
            ]
            name, why = find_logits(self._flow, free, self._settle)
            self._bind(Role.LOGITS, None, name, why)
            port = self._outputs[name]
        return port

    def _bind_inputs(self, logits: Port) -> None:
        taken = {binding.role for binding in self._bound.values()}
        free = [port for port in self._graph.inputs if (port.name, True) not in self._bound]
        signals = InputSignals(self._flow, self._settle)
        for role, name, why in signals.assign(free, taken, logits):
            self._bind(role, None, name, why)

    def _without_role(self, port: Port) -> InvalidPackage:
        if _is_hidden(port):
            return UnsupportedModel(
                f"the input {port.name!r} of {self._graph.path.name} takes embeddings or hidden "
                "states, not token ids",
                why="this version runs single decoders",
            )
        shape = ", ".join(str(size) for size in port.shape)
        return InvalidPackage(
            f"the input {port.name!r} of {self._graph.path.name} has no role",
            why=f"nothing declares it, and the operators that read its {port.dtype} [{shape}] do "
            "not tell what it is for",
            fix=f"Name its role in {self._settle}, or export the package again",
        )

    def _check(self, binding: PortBinding) -> None:
        port, role = binding.port, binding.role
        what = f"the port {port.name!r} of {self._graph.path.name} is {role.value}"
        if port.dtype not in _DTYPES.get(role, (port.dtype,)):
            raise InvalidPackage(
                what, why=f"it cannot be of type {port.dtype}: {binding.why}", fix="Export it again"
            )
        rank = _RANKS.get(role, len(port.shape))
        if len(port.shape) not in (0, rank):
            raise UnsupportedModel(
                what, why=f"it has {len(port.shape)} axes where {rank} can be fed or read"
            )
        if role is Role.INPUT_IDS:
            for axis, of in ((0, "rows"), (1, "tokens of a row")):
                size = port.shape[axis] if port.shape else ""
                if isinstance(size, int):
                    raise UnsupportedModel(
                        what,
                        why=f"the graph takes exactly {size} {of} at a time",
                        fix="Export it with symbolic dimensions",
                    )

    def _check_declared_inputs(self, logits: Port) -> None:
        signals = InputSignals(self._flow, self._settle)
        for one in self._declared:
            if one.role in _OUTPUTS or one.layer is not None:
                continue
            why = signals.contradiction(one.role, self._inputs[one.name], logits)
            if why is not None:
                raise InvalidPackage(
                    f"{one.why} makes {one.name!r} {one.role.value}",
                    why=f"in {self._graph.path.name} {why}",
                    fix="Correct the field, or export the package again",
                )

    def _ignored(self) -> tuple[Ignored, ...]:
        return tuple(
            Ignored(
                f"{self._graph.path.name} output",
                port.name,
                f"it repeats {self._repeats[port.name]!r}"
                if port.name in self._repeats
                else "it has no role",
            )
            for port in self._graph.outputs
            if (port.name, False) not in self._bound
        )


def _is_hidden(port: Port) -> bool:
    return port.dtype in FLOATS and len(port.shape) == 3


def _role(one: Declaration) -> str:
    return one.role.value if one.layer is None else f"{one.role.value} of layer {one.layer}"


def _order(binding: PortBinding) -> tuple[bool, bool, int, int]:
    """Inputs before outputs, state behind the others, layers in order within one role."""
    roles = list(Role)
    is_state = binding.layer is not None
    return (
        not binding.port.is_input,
        is_state,
        roles.index(binding.role),
        binding.layer or 0,
    )
