"""What genai_config.json declares of a decoder's ports."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.model_package import Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.roles import Declaration

_INPUTS = {
    "input_ids": Role.INPUT_IDS,
    "inputs_embeds": Role.INPUTS_EMBEDS,
    "attention_mask": Role.ATTENTION_MASK,
    "position_ids": Role.POSITION_IDS,
}
_OUTPUTS = {"logits": Role.LOGITS, "hidden_states": Role.HIDDEN_STATES}
_LAYERED_INPUTS = {
    "past_key_names": (Role.PAST_KEY, "past_key_values.%d.key"),
    "past_value_names": (Role.PAST_VALUE, "past_key_values.%d.value"),
}
_LAYERED_OUTPUTS = {
    "present_key_names": (Role.PRESENT_KEY, "present.%d.key"),
    "present_value_names": (Role.PRESENT_VALUE, "present.%d.value"),
}
"""With the names that onnxruntime-genai takes where the field is absent."""


def declare_ports(graph: OnnxFile, decoder: Section) -> list[Declaration]:
    """Returns the ports that are named; what is left open the graph tells.

    Args:
        graph: the decoder's file.
        decoder: the section "model.decoder".

    Raises:
        InvalidPackage: names of state that are not those of the layers; field and port named.
        UnsupportedModel: a declared input that is not fed yet.
    """
    inputs, outputs = decoder.section("inputs"), decoder.section("outputs")
    _refuse_other_inputs(graph, inputs)
    layers = decoder.integer("num_hidden_layers", low=1)
    if layers is None:
        raise decoder.wrong("num_hidden_layers", "it is missing")
    found = []
    for section, roles in ((inputs, _INPUTS), (outputs, _OUTPUTS)):
        for field, role in roles.items():
            name = section.text(field)
            if name is not None:
                found.append(Declaration(role, name, None, section.evidence(field)))
    taken = {port.name for port in graph.inputs}
    found += _layered(graph, inputs, _LAYERED_INPUTS, layers, taken, "input")
    taken = {port.name for port in graph.outputs}
    found += _layered(graph, outputs, _LAYERED_OUTPUTS, layers, taken, "output")
    return found


def _layered(
    graph: OnnxFile,
    section: Section,
    fields: dict[str, tuple[Role, str]],
    layers: int,
    ports: set[str],
    kind: str,
) -> Iterator[Declaration]:
    for field, (role, usual) in fields.items():
        template = section.text(field)
        why = section.evidence(field)
        if template is None:
            if usual.replace("%d", "0") not in ports:
                continue
            template, why = usual, f"the conventional name {usual!r}"
        if template.count("%d") != 1:
            raise section.wrong(field, f"{template!r} does not hold one %d for the layer")
        for layer in range(layers):
            name = template.replace("%d", str(layer))
            if name not in ports:
                lacks = f"{graph.path.name} has no {kind} called {name!r}"
                raise section.wrong(field, f"num_hidden_layers is {layers}, and {lacks}")
            yield Declaration(role, name, layer, why)


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
