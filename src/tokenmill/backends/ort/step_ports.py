"""Under which names, and in which types, a session takes a step's inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from tokenmill.backends.graph.ports import LENGTHS_INPUT, POSITIONS_INPUT, TOTAL_INPUT
from tokenmill.backends.ort.placement import copied_inputs
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import Component, Port, Role

_STEPS = {
    Role.INPUT_IDS: ("int64", "int32"),
    Role.ATTENTION_MASK: ("int64", "int32", "bool", "float32", "float16"),
    Role.POSITION_IDS: ("int64", "int32"),
    Role.WRITE_INDICES: ("int64", "int32"),
    Role.KV_LENGTHS: ("int64", "int32"),
    Role.USE_CACHE_BRANCH: ("bool",),
    Role.LOGITS: ("float32", "float16"),
}
"""The types that are fed or read, by role."""


class StepPort(NamedTuple):
    """A port of the session."""

    name: str
    dtype: np.dtype[Any]


class StepPorts(NamedTuple):
    """A step's ports; None where the session has no such port.

    Attributes:
        lengths, total: attention lengths, in place of `mask`.
        chosen: which positions reach the head.
        write_indices, kv_lengths: of static caches.
        use_cache: see `Role.USE_CACHE_BRANCH`.
        past, present: of the state, in the order of `state_geometry`.
        copied: names of inputs that are copied when they are bound, see `placement`.
    """

    ids: StepPort
    logits: StepPort
    mask: StepPort | None
    positions: StepPort | None
    lengths: StepPort | None
    total: StepPort | None
    chosen: StepPort | None
    write_indices: StepPort | None
    kv_lengths: StepPort | None
    use_cache: StepPort | None
    past: tuple[str, ...]
    present: tuple[str, ...]
    copied: frozenset[str] = frozenset()


def step_ports(decoder: Component, session: onnxruntime.InferenceSession) -> StepPorts:
    """Returns the ports as the session has them, after rewrites.

    Raises:
        UnsupportedModel: the session asks for an input that nothing here can give, or a port is
            of a type that is not fed or read.
    """
    inputs = {port.name for port in session.get_inputs()}

    def own(role: Role) -> StepPort | None:
        port = decoder.find(role)
        return _typed(port, role) if port is not None and port.name in inputs else None

    def added(name: str, dtype: str) -> StepPort | None:
        return StepPort(name, np.dtype(dtype)) if name in inputs else None

    past: list[str] = []
    present: list[str] = []
    layers = sorted({b.layer for b in decoder.bindings if b.layer is not None})
    for layer in layers:
        for key, value, names in (
            (Role.PAST_KEY, Role.PAST_VALUE, past),
            (Role.PRESENT_KEY, Role.PRESENT_VALUE, present),
        ):
            names += [decoder.port(key, layer).name, decoder.port(value, layer).name]
    ports = StepPorts(
        ids=_typed(decoder.port(Role.INPUT_IDS), Role.INPUT_IDS),
        logits=_typed(decoder.port(Role.LOGITS), Role.LOGITS),
        mask=own(Role.ATTENTION_MASK),
        positions=own(Role.POSITION_IDS),
        lengths=added(LENGTHS_INPUT, "int32"),
        total=added(TOTAL_INPUT, "int32"),
        chosen=added(POSITIONS_INPUT, "int64"),
        write_indices=own(Role.WRITE_INDICES),
        kv_lengths=own(Role.KV_LENGTHS),
        use_cache=own(Role.USE_CACHE_BRANCH),
        past=tuple(past),
        present=tuple(present),
        copied=copied_inputs(session),
    )
    known = {port.name for port in ports if isinstance(port, StepPort)}
    if unknown := inputs - known - set(past):
        raise UnsupportedModel(
            f"the decoder {decoder.file.name} has inputs without a use: "
            f"{', '.join(sorted(unknown))}",
            fix="Its package must bind them to roles",
        )
    return ports


def refuse_ports(decoder: Component, layout: str, *ports: StepPort | None) -> None:
    """Raises `UnsupportedModel`, naming the port, where the layout has no use for one of these."""
    for port in ports:
        if port is not None:
            raise UnsupportedModel(
                f"the input {port.name!r} of {decoder.file.name} has no use",
                why=f"its state is of the layout {layout!r}, which goes without",
                fix="Its package must bind it to another role",
            )


def _typed(port: Port, role: Role) -> StepPort:
    if port.dtype not in _STEPS[role]:
        raise UnsupportedModel(
            f"the port {port.name!r} is of type {port.dtype}",
            why=f"this backend takes {role.value} as {', '.join(_STEPS[role])}",
        )
    return StepPort(port.name, np.dtype(port.dtype))
