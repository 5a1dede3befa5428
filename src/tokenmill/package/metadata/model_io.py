"""The legacy section `model.io`: ports by declaration, state as pairs by position."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.decoder_facts import DecoderFacts
from tokenmill.package.metadata.key_or_value import HALVES, halves_of
from tokenmill.package.metadata.reading import Reading, one_of, required_text
from tokenmill.package.metadata.tensor_contract import check_contract, find_port, lacks
from tokenmill.package.model_package import Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.roles import Declaration

_SINGLE = {
    "token_input": (Role.INPUT_IDS, True),
    "attention_mask_input": (Role.ATTENTION_MASK, True),
    "position_ids_input": (Role.POSITION_IDS, True),
    "logits_output": (Role.LOGITS, False),
    "hidden_output": (Role.HIDDEN_STATES, False),
}
_REFUSED = {
    "inputs_embeds_input": "embeddings from another graph are not fed",
    "encoder_hidden_states_input": "encoders are not run",
    "audio_features_input": "sound is not read",
    "cross_kv_inputs": "cross attention is not run",
    "cross_kv_outputs": "cross attention is not run",
    "state_pairs": "state pairs (recurrent) are not carried",
}
_KNOWN = (
    *_SINGLE,
    *_REFUSED,
    "aliasing",
    "inputs",
    "outputs",
    "kv_inputs",
    "kv_layout",
    "kv_outputs",
    "kv_ownership",
    "kv_update",
    "optional_inputs",
    "sequence_source",
    "static_cache",
)
_STATIC_SINGLE = {
    "write_indices_input": Role.WRITE_INDICES,
    "kv_sequence_length_input": Role.KV_LENGTHS,
}
_STATIC_LAYERED = {
    "key_cache_inputs": (Role.PAST_KEY, True),
    "value_cache_inputs": (Role.PAST_VALUE, True),
    "key_cache_outputs": (Role.PRESENT_KEY, False),
    "value_cache_outputs": (Role.PRESENT_VALUE, False),
}


def read_model_io(reading: Reading, io: Section, graph: OnnxFile) -> DecoderFacts:
    """Reads the section.

    Args:
        io: `model.io`; may be empty.
        graph: the decoder's file.

    Raises:
        InvalidPackage: a field that is not known, a port that the graph lacks, or lists that do
            not pair up; names the field.
        UnsupportedModel: state or inputs of a kind that is not executed; names the field.
    """
    reading.only(io, _KNOWN)
    for name, why in _REFUSED.items():
        if name in io:
            reading.refuse(io, name, why)
    if one_of(io, "sequence_source", ("token_ids", "inputs_embeds")) == "inputs_embeds":
        raise UnsupportedModel(
            f"{io.file}: {io.field('sequence_source')} is inputs_embeds",
            why="embeddings from another graph are not fed",
        )
    for name in ("inputs", "outputs"):
        _check_ports(reading, io, name, graph)
    if "static_cache" in io and ("kv_inputs" in io or "kv_outputs" in io):
        raise io.wrong("static_cache", "kv_inputs and kv_outputs describe the same state again")
    declared = [*_single(io, graph), *_pairs(io, graph), *_static_cache(reading, io, graph)]
    _check_optional(reading, io, declared)
    return DecoderFacts(io, tuple(declared), must_share=_sharing(reading, io))


def _check_ports(reading: Reading, io: Section, name: str, graph: OnnxFile) -> None:
    for contract in io.children(name):
        port = _port(contract, "name", required_text(contract, "name"), graph, name == "inputs")
        check_contract(reading, contract, find_port(graph, port, is_input=name == "inputs"))


def _single(io: Section, graph: OnnxFile) -> Iterator[Declaration]:
    for name, (role, is_input) in _SINGLE.items():
        if name in io:
            port = _port(io, name, required_text(io, name), graph, is_input)
            yield Declaration(role, port, None, io.evidence(name))


def _pairs(io: Section, graph: OnnxFile) -> Iterator[Declaration]:
    """Yields the roles of positional pairs: which half each is, and of which layer."""
    inputs, outputs = _ports(io, "kv_inputs", graph, True), _ports(io, "kv_outputs", graph, False)
    if len(inputs) != len(outputs):
        why = f"it has {len(outputs)} ports where kv_inputs has {len(inputs)}"
        raise io.wrong("kv_outputs", why)
    if len(inputs) % 2:
        raise io.wrong("kv_inputs", f"{len(inputs)} ports do not make keys and values of layers")
    halves = halves_of(io, "kv_inputs", inputs, graph)
    layers = dict.fromkeys(HALVES, 0)
    for past, present, half in zip(inputs, outputs, halves, strict=True):
        layer = layers[half]
        layers[half] += 1
        past_role, present_role = HALVES[half]
        yield Declaration(past_role, past, layer, io.evidence("kv_inputs"))
        yield Declaration(present_role, present, layer, io.evidence("kv_outputs"))


def _static_cache(reading: Reading, io: Section, graph: OnnxFile) -> Iterator[Declaration]:
    if "static_cache" not in io:
        return
    cache = io.section("static_cache")
    reading.only(cache, (*_STATIC_SINGLE, *_STATIC_LAYERED))
    for name, role in _STATIC_SINGLE.items():
        port = _port(cache, name, required_text(cache, name), graph, True)
        yield Declaration(role, port, None, cache.evidence(name))
    layers = None
    for name, (role, is_input) in _STATIC_LAYERED.items():
        ports = _ports(cache, name, graph, is_input)
        layers = len(ports) if layers is None else layers
        if not ports or len(ports) != layers:
            why = f"it has {len(ports)} ports where {next(iter(_STATIC_LAYERED))} has {layers}"
            raise cache.wrong(name, why if ports else "it names no port")
        for layer, port in enumerate(ports):
            yield Declaration(role, port, layer, cache.evidence(name))


def _check_optional(reading: Reading, io: Section, declared: list[Declaration]) -> None:
    """Refuses ports that are fed zeros where a request gives nothing, unless they have a role."""
    optional = io.section("optional_inputs")
    fed = {declaration.name for declaration in declared}
    for name in optional.names():
        entry = optional.section(name)
        reading.only(entry, ("presence", "absent"))
        required_text(entry, "presence")
        absent = entry.section("absent")
        reading.only(absent, ("kind", "shape"))
        if one_of(absent, "kind", ("zeros",)) is None:
            raise absent.wrong("kind", "it is missing")
        if name in fed:
            reading.ignore(optional, name, "the port is always fed")
        else:
            why = "this version feeds ports by their role, and this one has none"
            reading.refuse(optional, name, why)


def _sharing(reading: Reading, io: Section) -> tuple[Section, str] | None:
    """Returns the field that demands one buffer for past and present, if one does."""
    layout = io.raw("kv_layout")
    if layout not in (None, "head_major_bnsh"):
        raise UnsupportedModel(
            f"{io.file}: {io.field('kv_layout')} is {io.brief('kv_layout')}",
            why="state is read as head_major_bnsh only",
        )
    if one_of(io, "kv_update", ("append", "replace")) == "replace":
        raise UnsupportedModel(
            f"{io.file}: {io.field('kv_update')} is replace", why="attention state is appended to"
        )
    aliasing = one_of(io, "aliasing", ("permitted", "required", "forbidden"))
    owner = one_of(io, "kv_ownership", ("owned", "shared"))
    if aliasing == "forbidden" and owner == "shared":
        raise io.wrong("aliasing", "it is forbidden, and kv_ownership is shared")
    if aliasing == "required":
        return io, "aliasing"
    if owner == "shared":
        return io, "kv_ownership"
    for name in ("aliasing", "kv_ownership"):
        reading.ignore(io, name, "the operators that read the state decide")
    return None


def _ports(section: Section, name: str, graph: OnnxFile, is_input: bool) -> tuple[str, ...]:
    ports = section.text_list(name)
    for index, port in enumerate(ports):
        _port(section, f"{name}[{index}]", port, graph, is_input)
        if port in ports[:index]:
            raise section.wrong(f"{name}[{index}]", f"{port!r} is there twice")
    return ports


def _port(section: Section, field: str, port: str, graph: OnnxFile, is_input: bool) -> str:
    if find_port(graph, port, is_input=is_input) is None:
        raise section.wrong(field, lacks(graph, port, is_input=is_input))
    return port
