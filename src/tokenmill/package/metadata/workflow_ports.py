"""A workflow's decoder: the ports and the state that it declares, held against the graph."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.decoder_facts import DecoderFacts
from tokenmill.package.metadata.reading import Reading
from tokenmill.package.metadata.ssa import all_steps
from tokenmill.package.metadata.state_groups import StateGroup, StatePort
from tokenmill.package.metadata.steps import Invoke
from tokenmill.package.metadata.tensor_contract import check_contract, find_port, lacks
from tokenmill.package.metadata.workflow import Workflow, WorkflowComponent
from tokenmill.package.model_package import Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.roles import Declaration

_ROLES = {
    "token_ids": (Role.INPUT_IDS, True),
    "attention_mask": (Role.ATTENTION_MASK, True),
    "position_ids": (Role.POSITION_IDS, True),
    "logits": (Role.LOGITS, False),
    "hidden_states": (Role.HIDDEN_STATES, False),
}
_REFUSED = {
    "inputs_embeds": "embeddings from another graph are not fed",
    "encoder_hidden_states": "encoders are not run",
    "audio_features": "sound is not read",
}
_STATE = {
    "key": (Role.PAST_KEY, Role.PRESENT_KEY),
    "value": (Role.PAST_VALUE, Role.PRESENT_VALUE),
}


def read_decoder_ports(
    reading: Reading,
    workflow: Workflow,
    decoder: WorkflowComponent,
    groups: tuple[StateGroup, ...],
    graph: OnnxFile,
) -> DecoderFacts:
    """Returns what the decoder's component and the state groups declare.

    Raises:
        InvalidPackage: a port that the graph lacks, or has otherwise; names the field.
        UnsupportedModel: an input that is not fed, or state that is kept in two ways.
    """
    ports = decoder.section.section("ports")
    for name in ("inputs", "outputs"):
        contracts = ports.section(name)
        for port in contracts.names():
            found = find_port(graph, port, is_input=name == "inputs")
            if found is None:
                raise contracts.wrong(port, lacks(graph, port, is_input=name == "inputs"))
            check_contract(reading, contracts.section(port), found)
    declared = [*_roles(decoder, ports.section("roles"), graph), *_state(groups, graph)]
    ways = {group.is_scattered for group in groups}
    if len(ways) > 1:
        section = groups[0].section
        raise UnsupportedModel(
            f"{section.file}: {workflow.serving.field('state_service.groups')} mixes updates",
            why="state is appended to or scattered into, the same for all layers",
        )
    for group in groups:
        for role, fields, name in (
            (Role.WRITE_INDICES, group.write_indices, "write_indices_ports"),
            (Role.KV_LENGTHS, group.kv_lengths, "kv_length_ports"),
        ):
            if decoder.name in fields:
                section = group.section.section("update").section(name)
                port = _known(section, decoder.name, fields[decoder.name], graph, is_input=True)
                one = Declaration(role, port, None, section.evidence(decoder.name))
                if one[:3] not in [other[:3] for other in declared]:
                    declared.append(one)
    _check_steps(workflow, decoder, graph)
    capacity = next(
        (
            (group.capacity, group.section.section("update"), "capacity")
            for group in groups
            if group.capacity is not None
        ),
        None,
    )
    return DecoderFacts(
        ports,
        tuple(declared),
        capacity,
        next(((group.section, "aliasing") for group in groups if group.must_share), None),
        next(((group.section, "kind") for group in groups if group.is_sliding), None),
    )


def _check_steps(workflow: Workflow, decoder: WorkflowComponent, graph: OnnxFile) -> None:
    """Refuses steps that give the decoder a port, or take one, that its graph lacks."""
    for step in all_steps(workflow.steps):
        if isinstance(step, Invoke) and step.component == decoder.name:
            for port in step.inputs:
                _known(step.section.section("inputs"), port, port, graph, is_input=True)
            for port in step.outputs:
                _known(step.section.section("outputs"), port, port, graph, is_input=False)


def _roles(decoder: WorkflowComponent, roles: Section, graph: OnnxFile) -> Iterator[Declaration]:
    for port, role in decoder.roles.items():
        if role in _REFUSED:
            raise UnsupportedModel(
                f"{roles.file}: {roles.field(port)} is {role}", why=_REFUSED[role]
            )
        meant, is_input = _ROLES[role]
        _known(roles, port, port, graph, is_input=is_input)
        yield Declaration(meant, port, None, roles.evidence(port))


def _state(groups: tuple[StateGroup, ...], graph: OnnxFile) -> Iterator[Declaration]:
    """Yields the state ports, layers numbered through all groups in the order of the model."""
    places = {port.name: place for place, port in enumerate(graph.inputs)}
    keyed = [
        (group.name, port) for group in groups for port in group.ports if port.role is not None
    ]
    for _, port in keyed:
        _known(port.section, "input", port.past, graph, is_input=True)
        _known(port.section, "output", port.present, graph, is_input=False)
    layers = {(name, port.layer): port for name, port in keyed if port.role == "key"}
    ordered = sorted(layers, key=lambda item: item[1])
    if len({layer for _, layer in layers}) < len(layers):
        ordered = sorted(layers, key=lambda item: places[layers[item].past])
    for name, port in keyed:
        yield from _pair(port, ordered.index((name, port.layer)))


def _pair(port: StatePort, layer: int) -> Iterator[Declaration]:
    assert port.role is not None, "ports without a role are left out"
    past, present = _STATE[port.role]
    yield Declaration(past, port.past, layer, port.section.evidence("input"))
    yield Declaration(present, port.present, layer, port.section.evidence("output"))


def _known(section: Section, field: str, port: str, graph: OnnxFile, *, is_input: bool) -> str:
    if find_port(graph, port, is_input=is_input) is None:
        raise section.wrong(field, lacks(graph, port, is_input=is_input))
    return port
