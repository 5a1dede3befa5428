"""State service groups: which ports of the decoder hold the past, of which layer, kept how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, one_of, required_text
from tokenmill.package.metadata.workflow import Workflow

_KINDS = {
    "full_attention": None,
    "sliding_attention": None,
    "multi_latent_attention": "multi-latent state is not kept",
    "recurrent": "recurrent state is not kept",
    "cross_attention": "cross attention is not run",
    "encoder": "encoders are not run",
}
"""Kind to the reason why it is refused."""
_SEQUENCE_AXIS = {"bnsh": 2, "bsnh": 1, "bsh": 1}
_GROUP = (
    "kind",
    "sequence_axis",
    "layout",
    "logical_lengths",
    "aliasing",
    "update",
    "total_length",
    "reuse",
    "capabilities",
    "checkpoint",
    "ports",
)


@dataclass(frozen=True, slots=True)
class StatePort:
    """A pair of ports that hold one part of one layer's past.

    Attributes:
        section: the alias.
        cell: the state cell that it holds.
        role: "key" or "value"; None where it is not said.
        layer: as declared, 0 where one port of a role needs none.
    """

    section: Section
    component: str
    cell: str
    past: str
    present: str
    role: str | None
    layer: int


@dataclass(frozen=True, slots=True)
class StateGroup:
    """State that is kept in one way.

    Attributes:
        is_sliding: its layers look back at a window only.
        must_share: past and present must be one buffer.
        capacity: tokens of the fixed buffers; None where they grow, or nobody tells.
        is_scattered: new tokens are written at indices into fixed buffers.
        write_indices, kv_lengths: component to port; empty unless scattered.
    """

    section: Section
    name: str
    is_sliding: bool
    must_share: bool
    is_scattered: bool
    capacity: int | None
    write_indices: dict[str, str]
    kv_lengths: dict[str, str]
    ports: tuple[StatePort, ...]


def read_state_groups(reading: Reading, workflow: Workflow) -> tuple[StateGroup, ...]:
    """Reads `serving.state_service.groups`.

    Raises:
        InvalidPackage: a rule of the format is broken; names the field.
        UnsupportedModel: state of a kind, layout or split that is not kept; names it.
    """
    serving = workflow.serving
    reading.only(serving, ("active", "done", "accepted_len", "state_service"))
    service = serving.section("state_service")
    reading.only(service, ("groups",))
    groups = service.section("groups")
    for name, cell in workflow.cells.items():
        if cell.group is not None and cell.group not in groups:
            raise cell.section.wrong("service_group", f"there is no group {cell.group!r}")
        if cell.management != "workflow" and cell.group is None:
            raise UnsupportedModel(
                f"{cell.section.file}: {cell.section.field('management')} is {cell.management}",
                why=f"the state {name!r} belongs to no group, so nobody says how it is kept",
            )
    return tuple(_group(reading, workflow, name, groups.section(name)) for name in groups.names())


def _group(reading: Reading, workflow: Workflow, name: str, group: Section) -> StateGroup:
    reading.only(group, _GROUP)
    kind = one_of(group, "kind", _KINDS)
    if kind is None:
        raise group.wrong("kind", "it is missing")
    refusal = _KINDS[kind]
    if refusal is not None:
        raise UnsupportedModel(f"{group.file}: {group.field('kind')} is {kind}", why=refusal)
    update = group.section("update")
    way = one_of(update, "kind", ("append", "replace", "indexed_scatter")) or "append"
    if way == "replace":
        raise UnsupportedModel(
            f"{update.file}: {update.field('kind')} is replace",
            why="attention state is appended to, or scattered into",
        )
    is_scattered = way == "indexed_scatter"
    _check_layout(group, is_scattered=is_scattered)
    _check_cells(workflow, name, group, is_scattered=is_scattered)
    ports = tuple(_ports(reading, workflow, name, group))
    _check_layers(group, ports)
    _note_freedoms(reading, group)
    aliasing = one_of(group, "aliasing", ("permitted", "required", "forbidden"))
    capacity: int | None = None
    indices: dict[str, str] = {}
    lengths: dict[str, str] = {}
    if is_scattered:
        capacity, indices, lengths = _scatter(reading, workflow, group, update, ports)
    else:
        reading.only(update, ("kind",))
    return StateGroup(
        group,
        name,
        kind == "sliding_attention",
        aliasing == "required",
        is_scattered,
        capacity,
        indices,
        lengths,
        ports,
    )


def _check_layout(group: Section, *, is_scattered: bool) -> None:
    layout = one_of(group, "layout", _SEQUENCE_AXIS)
    if layout is None:
        raise group.wrong("layout", "it is missing")
    axis = group.integer("sequence_axis", high=63)
    if axis is None:
        raise group.wrong("sequence_axis", "it is missing, and the state grows along one")
    if axis != _SEQUENCE_AXIS[layout]:
        raise group.wrong(
            "sequence_axis", f"it is {axis}, and {layout} has {_SEQUENCE_AXIS[layout]}"
        )
    if layout == "bsnh" or (layout == "bsh" and not is_scattered):
        raise UnsupportedModel(
            f"{group.file}: {group.field('layout')} is {layout}",
            why="state is kept as bnsh, and as bsh where it is scattered into",
        )


def _check_cells(workflow: Workflow, name: str, group: Section, *, is_scattered: bool) -> None:
    axis = group.integer("sequence_axis", high=63)
    for cell in workflow.cells.values():
        if cell.group != name:
            continue
        if is_scattered and cell.recurrence != "invariant":
            why = f"it is {cell.recurrence}, and the buffers of a scattered group keep their size"
            raise cell.section.section("recurrence").wrong("kind", why)
        if cell.axis is not None and cell.axis != axis:
            why = f"it is {cell.axis}, and the group {name!r} has the sequence_axis {axis}"
            raise cell.section.section("recurrence").wrong("axis", why)
    lengths = group.text("logical_lengths")
    if lengths is not None and lengths not in workflow.cells:
        raise group.wrong("logical_lengths", f"there is no state {lengths!r}")
    if lengths is None and is_scattered:
        raise group.wrong("logical_lengths", "it is missing, and the state is scattered into")


def _ports(reading: Reading, workflow: Workflow, name: str, group: Section) -> Iterator[StatePort]:
    components = group.section("ports")
    if not components.names():
        raise group.wrong("ports", "the group has none")
    for component in components.names():
        aliases = components.section(component)
        if component not in workflow.components:
            raise components.wrong(component, "there is no such component")
        for cell in aliases.names():
            alias = aliases.section(cell)
            found = workflow.cells.get(cell)
            if found is None:
                raise aliases.wrong(cell, "there is no such state")
            if found.group != name:
                raise aliases.wrong(cell, f"the state belongs to the group {found.group!r}")
            yield _port(reading, alias, component, cell)


def _port(reading: Reading, alias: Section, component: str, cell: str) -> StatePort:
    reading.only(alias, ("input", "output", "access", "role", "layer"))
    if one_of(alias, "access", ("read_write", "read_only")) == "read_only":
        raise UnsupportedModel(
            f"{alias.file}: {alias.field('access')} is read_only",
            why="state that a decoder reads and another component writes is not kept",
        )
    role = one_of(alias, "role", ("key", "value", "combined"))
    if role == "combined":
        raise UnsupportedModel(
            f"{alias.file}: {alias.field('role')} is combined",
            why="keys and values in one tensor are not kept",
        )
    return StatePort(
        alias,
        component,
        cell,
        required_text(alias, "input"),
        required_text(alias, "output"),
        role,
        alias.integer("layer", high=100_000) or 0,
    )


def _check_layers(group: Section, ports: tuple[StatePort, ...]) -> None:
    """Checks that layers pair keys with values: labels are no order, and shapes are all alike."""
    for component in dict.fromkeys(port.component for port in ports):
        layers: dict[str, set[int]] = {"key": set(), "value": set()}
        for role, seen in layers.items():
            mine = [port for port in ports if (port.component, port.role) == (component, role)]
            for port in mine:
                if len(mine) > 1 and "layer" not in port.section:
                    why = f"it is missing, and the group has {len(mine)} ports of the role {role}"
                    raise port.section.wrong("layer", why)
                if port.layer in seen:
                    why = f"another port of the role {role} has the layer {port.layer}"
                    raise port.section.wrong("layer", why)
                seen.add(port.layer)
        if layers["key"] != layers["value"]:
            where = group.section("ports")
            keys, values = (sorted(layers[role]) for role in ("key", "value"))
            raise where.wrong(
                component, f"it has keys of the layers {keys}, and values of {values}"
            )


def _scatter(
    reading: Reading,
    workflow: Workflow,
    group: Section,
    update: Section,
    ports: tuple[StatePort, ...],
) -> tuple[int | None, dict[str, str], dict[str, str]]:
    reading.only(
        update, ("kind", "write_indices", "capacity", "write_indices_ports", "kv_length_ports")
    )
    cursor = required_text(update, "write_indices")
    if cursor not in workflow.cells:
        raise update.wrong("write_indices", f"there is no state {cursor!r}")
    capacity = required_text(update, "capacity")
    if capacity not in workflow.inputs and capacity not in workflow.cells:
        raise update.wrong("capacity", f"there is no input and no state {capacity!r}")
    found: list[dict[str, str]] = []
    for name in ("write_indices_ports", "kv_length_ports"):
        section = update.section(name)
        for component in section.names():
            if component not in workflow.components:
                raise section.wrong(component, "there is no such component")
        for component in dict.fromkeys(port.component for port in ports):
            if component not in section:
                raise update.wrong(name, f"it names no port of {component!r}, which is scattered")
        found.append(
            {component: required_text(section, component) for component in section.names()}
        )
    return workflow.literal(capacity), found[0], found[1]


def _note_freedoms(reading: Reading, group: Section) -> None:
    reuse, abilities = group.section("reuse"), group.section("capabilities")
    reading.only(reuse, ("prefix_reusable", "evictable_prefix"))
    reading.only(abilities, ("rollback_positions", "snapshot", "fork", "cascade"))
    if abilities.integer("rollback_positions") == 0:
        raise abilities.wrong("rollback_positions", "it is 0; leave it out where none is possible")
    if "checkpoint" in group:
        checkpoint = group.section("checkpoint")
        reading.only(checkpoint, ("adapter", "version"))
        reading.ignore(group, "checkpoint", "state is not handed out")
    reading.ignore(group, "capabilities", "the graph's operators tell what state can do")
