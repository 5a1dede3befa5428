"""The session of a static graph, with the caches' capacity set free where that is right."""

from __future__ import annotations

from typing import NamedTuple

import onnxruntime

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.context import context_of
from tokenmill.backends.graph.free_capacity import free_capacity
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.ort.agreement import Tolerance, distance
from tokenmill.backends.ort.buckets import bucket
from tokenmill.backends.ort.pages import FOLDED, HEADS_TOKENS_DIM
from tokenmill.backends.ort.placement import check_state_is_shared
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.static_probe import StaticAbilities, probe_static
from tokenmill.backends.ort.static_stepper import StaticStepper
from tokenmill.backends.ort.step_ports import StepPorts, refuse_ports, step_ports
from tokenmill.core.errors import BackendError, TokenmillError, UnsupportedModel
from tokenmill.package.model_package import Component, ModelPackage, Role


class StaticSession(NamedTuple):
    """A session with the memory of its rows.

    Attributes:
        abilities: see `StaticAbilities`.
        fixed: the capacity stays as it is.
        notes: see `BackendReport.rewrites`.
    """

    session: onnxruntime.InferenceSession
    ports: StepPorts
    slots: Slots
    stepper: StaticStepper
    abilities: StaticAbilities
    fixed: bool
    notes: tuple[str, ...]


def open_static_session(
    package: ModelPackage, config: BackendConfig, rewritten: Rewritten | None
) -> StaticSession:
    """Loads a static graph and probes it.

    A graph that fixes the capacity of its caches is changed to leave it open, if it is larger
    than the least that we lay out, and if the changed graph computes the same.

    Raises:
        UnsupportedModel: see `StaticBackend`.
    """
    rewritten = rewritten or rewrite_decoder(package, config)
    fixed = package.state.capacity
    if fixed is None or bucket(1, fixed) == fixed:
        return _open(package, config, rewritten, fixed)
    try:
        opened = _open(package, config, _freed(package, config, rewritten), None)
    except TokenmillError:
        opened = None
    if opened is not None and _computes_the_same(opened, fixed):
        return _noted(opened, f"caches of {fixed:,} tokens take any number")
    opened = None
    note = f"caches stay at {fixed:,} tokens: the graph depends on their number"
    return _noted(_open(package, config, rewritten, fixed), note)


def _freed(package: ModelPackage, config: BackendConfig, rewritten: Rewritten) -> Rewritten:
    decoder = package.decoder
    roles = (Role.PAST_KEY, Role.PAST_VALUE, Role.PRESENT_KEY, Role.PRESENT_VALUE)
    names = [binding.port.name for binding in decoder.bindings if binding.role in roles]
    axis = 1 if _layout(decoder) == FOLDED else 2
    graph = free_capacity(decoder.file, rewritten.graph, names, axis, config.cache_dir)
    return rewritten._replace(graph=graph)


def _computes_the_same(opened: StaticSession, fixed: int) -> bool:
    """Whether caches of the first capacity give what those of the graph's own give."""
    first, found = opened.slots.capacity, opened.abilities.logits
    opened.slots.lay_out(fixed)
    try:
        expected = probe_static(opened.stepper, opened.ports, opened.slots).logits
    except BackendError:
        return False
    opened.slots.lay_out(first)
    tolerance = Tolerance(expected, opened.slots.geometry[0].dtype)
    return tolerance.allows(distance(found, expected))


def _open(
    package: ModelPackage, config: BackendConfig, rewritten: Rewritten, capacity: int | None
) -> StaticSession:
    decoder = package.decoder
    layout = _layout(decoder)
    longest = context_of(package, config.max_context)
    session = open_session(package, config, rewritten.graph)
    ports = step_ports(decoder, session)
    _check_ports(decoder, ports)
    check_state_is_shared(session, (*ports.past, *ports.present))
    first = bucket(1, longest) if capacity is None else capacity
    slots = Slots(package.state.attention, config.max_rows, longest, first, layout)
    stepper = StaticStepper(session, ports, slots, package.vocab_size)
    try:
        abilities = probe_static(stepper, ports, slots)
    except BackendError as error:
        raise UnsupportedModel(
            f"{decoder.file} does not run: a few tokens without a past fail", why=error.why
        ) from error
    if not abilities.several_with_past:
        raise UnsupportedModel(
            f"{decoder.file} computes chunks of a text wrongly",
            why=f"on ONNX Runtime {onnxruntime.__version__}, rows of several tokens with a past "
            "see other tokens than those before them",
            fix="Use a newer onnxruntime, or export without a static cache",
        )
    notes = rewritten.notes
    return StaticSession(session, ports, slots, stepper, abilities, capacity is not None, notes)


def _noted(opened: StaticSession, note: str) -> StaticSession:
    return opened._replace(notes=(*opened.notes, note))


def _layout(decoder: Component) -> str:
    """Returns the layout of all caches, see `pages`."""
    ranks = {
        len(binding.port.shape): binding.port.name
        for binding in decoder.bindings
        if binding.role in (Role.PAST_KEY, Role.PAST_VALUE)
    }
    if set(ranks) == {3}:
        return FOLDED
    if set(ranks) == {4}:
        return HEADS_TOKENS_DIM
    found = " and ".join(str(rank) for rank in sorted(ranks))
    raise UnsupportedModel(
        f"the caches of {decoder.file.name} have {found} dimensions",
        why="static caches are [batch, tokens, heads x dim] or [batch, heads, tokens, dim]",
    )


def _check_ports(decoder: Component, ports: StepPorts) -> None:
    refuse_ports(decoder, "static_cache", ports.lengths, ports.total, ports.use_cache, ports.mask)
    for role, port in (
        (Role.WRITE_INDICES, ports.write_indices),
        (Role.KV_LENGTHS, ports.kv_lengths),
    ):
        if port is None:
            raise UnsupportedModel(
                f"{decoder.file.name} has no port for {role.value}",
                why="static caches need to be told where to write and how far to read",
            )
