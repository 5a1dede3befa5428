"""A decoder graph's ports in their roles, by what genai_config.json declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.flow import Flow
from tokenmill.package.model_package import Ignored, Port, PortBinding, Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.state_pairs import KEY, VALUE, find_pairs

_INPUTS = {
    "input_ids": Role.INPUT_IDS,
    "inputs_embeds": Role.INPUTS_EMBEDS,
    "attention_mask": Role.ATTENTION_MASK,
    "position_ids": Role.POSITION_IDS,
}
_OUTPUTS = {"logits": Role.LOGITS, "hidden_states": Role.HIDDEN_STATES}
_LAYERED_INPUTS = {"past_key_names": Role.PAST_KEY, "past_value_names": Role.PAST_VALUE}
_TEMPLATES = {
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
"""What onnxruntime-genai takes where the field is absent."""
_LAYERED_OUTPUTS = {
    "present_key_names": Role.PRESENT_KEY,
    "present_value_names": Role.PRESENT_VALUE,
}
_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """All ports of a decoder, and the ones that the reader needs at hand.

    Attributes:
        state: by layer: past key, past value, present key, present value.
        ignored: outputs without a role; nothing needs them.
    """

    bindings: tuple[PortBinding, ...]
    logits: Port
    state: tuple[tuple[Port, Port, Port, Port], ...]
    ignored: tuple[Ignored, ...]


def bind_ports(graph: OnnxFile, decoder: Section) -> DecoderPorts:
    """Gives every port its declared role.

    Args:
        graph: the decoder's file.
        decoder: the section "model.decoder" of genai_config.json.

    Raises:
        InvalidPackage: a declared port that the graph lacks, an input without a role, a graph
            without logits, or key and value state that does not pair up; port and field named.
        UnsupportedModel: a declared input that is not fed yet.
    """
    layers = decoder.integer("num_hidden_layers", low=1)
    if layers is None:
        raise decoder.wrong("num_hidden_layers", "it is missing")
    inputs, outputs = decoder.section("inputs"), decoder.section("outputs")
    _refuse_other_inputs(graph, inputs)
    found = [
        *_single(graph, inputs, _INPUTS, is_input=True),
        *_layered(graph, inputs, _LAYERED_INPUTS, layers, is_input=True),
        *_single(graph, outputs, _OUTPUTS, is_input=False),
        *_layered(graph, outputs, _LAYERED_OUTPUTS, layers, is_input=False),
    ]
    _refuse_repeated(graph, found)
    _require_roles(graph, found, inputs, outputs)
    taken = {(binding.port.name, binding.port.is_input) for binding in found}
    for port in graph.inputs:
        if (port.name, True) not in taken:
            raise InvalidPackage(
                f"the input {port.name!r} of {graph.path.name} has no role",
                why=f"no field of {inputs.file.name} {inputs.path} names it",
                fix="Name it there, or export the package again",
            )
    ignored = tuple(
        Ignored(f"{graph.path.name} output", port.name, "it has no role")
        for port in graph.outputs
        if (port.name, False) not in taken
    )
    by_role = {(binding.role, binding.layer): binding.port for binding in found}
    _check_state(by_role, layers, graph)
    _check_continued(by_role, layers, graph, inputs, outputs)
    return DecoderPorts(
        tuple(found),
        by_role[Role.LOGITS, None],
        tuple(
            (
                by_role[Role.PAST_KEY, layer],
                by_role[Role.PAST_VALUE, layer],
                by_role[Role.PRESENT_KEY, layer],
                by_role[Role.PRESENT_VALUE, layer],
            )
            for layer in range(layers)
        ),
        ignored,
    )


def _refuse_other_inputs(graph: OnnxFile, inputs: Section) -> None:
    known = {*_INPUTS, *_LAYERED_INPUTS}
    names = {port.name for port in graph.inputs}
    for field, template in inputs.texts():
        if field not in known and not names.isdisjoint(_layer_names(template, len(names))):
            raise UnsupportedModel(
                f"{inputs.evidence(field)} names an input {template!r}",
                why="this version does not feed such an input",
            )
    if "inputs_embeds" in inputs and "input_ids" not in inputs:
        raise UnsupportedModel(
            f"{inputs.evidence('inputs_embeds')}: the decoder takes embeddings, not token ids",
            why="this version runs single decoders",
        )


def _layer_names(template: str, layers: int) -> Iterator[str]:
    yield template
    if "%d" in template:
        yield from (template.replace("%d", str(layer)) for layer in range(layers))


def _single(
    graph: OnnxFile, section: Section, roles: Mapping[str, Role], *, is_input: bool
) -> list[PortBinding]:
    ports = _ports(graph, is_input=is_input)
    out = []
    for name, role in roles.items():
        declared = section.text(name)
        port = ports.get(name if declared is None else declared)
        if port is not None:
            why = (
                section.evidence(name)
                if declared is not None
                else f"the port's conventional name {name!r}"
            )
            out.append(PortBinding(port, role, None, why))
        elif declared is not None:
            raise section.wrong(name, _lacks(graph, declared, is_input=is_input))
    return out


def _layered(
    graph: OnnxFile, section: Section, roles: Mapping[str, Role], layers: int, *, is_input: bool
) -> list[PortBinding]:
    ports = _ports(graph, is_input=is_input)
    out = []
    for name, role in roles.items():
        declared = section.text(name)
        template = declared if declared is not None else _TEMPLATES[name]
        if template.count("%d") != 1:
            raise section.wrong(name, f"{template!r} does not hold one %d for the layer")
        for layer in range(layers):
            port = ports.get(template.replace("%d", str(layer)))
            if port is None:
                why = _lacks(graph, template.replace("%d", str(layer)), is_input=is_input)
                raise section.wrong(name, f"num_hidden_layers is {layers}, and {why}")
            why = section.evidence(name)
            if declared is None:
                why = f"the conventional name {template!r}"
            out.append(PortBinding(port, role, layer, why))
    return out


def _refuse_repeated(graph: OnnxFile, found: list[PortBinding]) -> None:
    roles: dict[tuple[str, bool], PortBinding] = {}
    for binding in found:
        before = roles.setdefault((binding.port.name, binding.port.is_input), binding)
        if before is not binding:
            raise InvalidPackage(
                f"{binding.why} makes {binding.port.name!r} {binding.role.value}",
                why=f"{before.why} makes this port of {graph.path.name} {before.role.value}",
                fix="Correct one of them; a port has one role",
            )


def _require_roles(
    graph: OnnxFile, found: list[PortBinding], inputs: Section, outputs: Section
) -> None:
    roles = {binding.role for binding in found}
    for role, section in ((Role.INPUT_IDS, inputs), (Role.LOGITS, outputs)):
        if role not in roles:
            names = sorted(_ports(graph, is_input=section is inputs))
            raise InvalidPackage(
                f"{graph.path.name} has no port for {role.value}",
                why=f"it has {', '.join(names[:6]) or 'none'}{' ...' if len(names) > 6 else ''}",
                fix=f"Name the port in {section.file.name} {section.field(role.value)}",
            )
    for binding in found:
        if binding.role is Role.LOGITS and binding.port.dtype not in _FLOATS:
            raise InvalidPackage(
                f"the port {binding.port.name!r} of {graph.path.name}",
                why=f"logits cannot be of type {binding.port.dtype}",
            )


def _check_state(
    by_role: Mapping[tuple[Role, int | None], Port], layers: int, graph: OnnxFile
) -> None:
    for layer in range(layers):
        past = by_role[Role.PAST_KEY, layer]
        for role in (Role.PAST_VALUE, Role.PRESENT_KEY, Role.PRESENT_VALUE):
            port = by_role[role, layer]
            if port.dtype != past.dtype or not _same_geometry(port, past):
                raise InvalidPackage(
                    f"the ports {past.name!r} and {port.name!r} of {graph.path.name}",
                    why=f"they are {past.dtype} {_shape(past)} and {port.dtype} {_shape(port)}",
                    fix="State must keep its type and shape from past to present",
                )


def _check_continued(
    by_role: Mapping[tuple[Role, int | None], Port],
    layers: int,
    graph: OnnxFile,
    inputs: Section,
    outputs: Section,
) -> None:
    """Holds declared state against the operators: what continues which past, and which half."""
    pairs = {pair.past: pair for pair in find_pairs(Flow(graph))}
    halves = (
        (KEY, Role.PAST_KEY, Role.PRESENT_KEY, "past_key_names", "present_key_names"),
        (VALUE, Role.PAST_VALUE, Role.PRESENT_VALUE, "past_value_names", "present_value_names"),
    )
    for layer in range(layers):
        for half, past_role, present_role, past_field, present_field in halves:
            past, present = by_role[past_role, layer].name, by_role[present_role, layer].name
            pair = pairs.get(past)
            if pair is None:
                continue
            if pair.half not in (None, half):
                why = f"{past!r} is a {half} there, and {graph.path.name} reads it as a {pair.half}"
                raise inputs.wrong(past_field, why)
            if present not in (pair.present, *pair.repeats):
                why = f"{past!r} is continued by {pair.present!r} in {graph.path.name}"
                raise outputs.wrong(present_field, f"it names {present!r}, but {why}")


def _same_geometry(a: Port, b: Port) -> bool:
    """Whether two state ports agree in all sizes that both of them tell, but for the tokens."""
    return len(a.shape) == len(b.shape) and all(
        axis == 2 or isinstance(m, str) or isinstance(n, str) or m == n
        for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))
    )


def _shape(port: Port) -> str:
    return f"[{', '.join(str(size) for size in port.shape)}]"


def _ports(graph: OnnxFile, *, is_input: bool) -> dict[str, Port]:
    return {port.name: port for port in (graph.inputs if is_input else graph.outputs)}


def _lacks(graph: OnnxFile, name: str, *, is_input: bool) -> str:
    kind = "input" if is_input else "output"
    return f"{graph.path.name} has no {kind} called {name!r}"
