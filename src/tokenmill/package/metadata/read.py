"""Reads a package that an `inference_metadata` document describes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_graph import DecoderGraph
from tokenmill.package.decoder_ports import DecoderPorts
from tokenmill.package.decoder_state import Geometry, read_layout
from tokenmill.package.document import Section
from tokenmill.package.external_data import check_external_data
from tokenmill.package.identity import fingerprint_of
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.metadata.artifacts import artifact_path
from tokenmill.package.metadata.capabilities import check_capabilities, check_manifest
from tokenmill.package.metadata.decoder_facts import DecoderFacts
from tokenmill.package.metadata.decoder_workflow import (
    DecoderWorkflow,
    component_graph,
    recognise,
)
from tokenmill.package.metadata.generation import read_defaults, read_overrides
from tokenmill.package.metadata.model_facts import ModelFacts, read_model_facts
from tokenmill.package.metadata.model_io import read_model_io
from tokenmill.package.metadata.other_sections import (
    check_hints,
    read_informative_sections,
    read_profiles,
    refuse_other_sections,
)
from tokenmill.package.metadata.read_document import find_document, read_metadata_file
from tokenmill.package.metadata.reading import Reading
from tokenmill.package.metadata.ssa import check_values, used_capabilities
from tokenmill.package.metadata.state_groups import read_state_groups
from tokenmill.package.metadata.tokenizer_facts import read_text, read_tokenizer_facts
from tokenmill.package.metadata.workflow import Workflow, read_workflow
from tokenmill.package.metadata.workflow_ports import read_decoder_ports
from tokenmill.package.model_package import (
    Component,
    GenerationDefaults,
    Ignored,
    ModelPackage,
    PackageForm,
    Permissions,
    StateContract,
    StateLayout,
)
from tokenmill.package.onnx_file import OnnxFile, read_onnx
from tokenmill.package.precision import precision_in_words
from tokenmill.package.roles import resolve_ports
from tokenmill.package.wiring import check_wiring

HINTS_FILE = "execution_hints.json"
GRAPH_FILE = "model.onnx"

_DOCUMENT = (
    "schema_version",
    "required_capabilities",
    "model",
    "quantization",
    "kv_cache",
    "pipeline",
    "adapters",
    "hardware_requirements",
    "preprocessing",
    "package",
    "generation",
    "profiles",
    "speculative",
)
_OLD_PIPELINE = ("models", "dataflow", "strategy", "phases", "vision", "positions")
_VERSIONS = ("v1", "1.0")
"""The format's own name of its first version, and how its own examples spell it."""


@dataclass(frozen=True, slots=True)
class _Described:
    """A decoder's graph with what the document says of it.

    Attributes:
        workflow, flow: None where the document has no workflow.
    """

    graph: OnnxFile
    facts: DecoderFacts
    workflow: Workflow | None = None
    flow: DecoderWorkflow | None = None


def read_metadata(root: Path, options: LoadOptions) -> ModelPackage:
    """Reads the directory. See `load_package` for what it raises."""
    reading = Reading(options.lossy)
    file = find_document(root)
    document = read_metadata_file(file)
    _check_document(reading, document)
    model = read_model_facts(reading, document)
    described = _describe(reading, document, model, root)
    graph, facts = described.graph, described.facts
    check_external_data(graph, root)
    check_wiring(graph)
    ports = resolve_ports(graph, facts.declared, settle=facts.settle)
    told = model.attention.evidence("num_kv_heads"), model.attention.evidence("head_dim")
    geometry = Geometry(model.num_kv_heads, model.head_dim, told)
    state = read_layout(graph, ports, declared=geometry, settle=facts.settle)
    state = _checked_state(reading, state, model, facts)
    vocab_size = _vocab_size(model, graph, ports)
    context, shortened = DecoderGraph(graph, ports, state).shortened(
        _context(reading, state, model, described), model.section.evidence("max_sequence_length")
    )
    reading.ignored.extend(shortened)
    tokenizer = read_tokenizer_facts(reading, document, root, options.text_directory(root))
    eos = described.flow.eos if described.flow else ()
    text = read_text(reading, tokenizer, eos, vocab_size)
    if not text.eos_token_ids:
        why = "no file says which token ends a text; a reply ends at its limit"
        reading.ignored.append(Ignored("eos_token_id", "none", why))
    generation = document.section("generation")
    reading.only(generation, ("defaults", "overrides"))
    defaults = _defaults(reading, generation, described.flow)
    workflow = described.workflow
    overrides = read_overrides(
        reading, generation, workflow.is_request_input if workflow else lambda _: False
    )
    _read_hints(reading, root)
    return ModelPackage(
        root=root,
        form=PackageForm.INFERENCE_METADATA,
        fingerprint=fingerprint_of(graph, [file]),
        components={
            "decoder": Component(
                name="decoder",
                file=graph.path,
                bindings=ports.bindings,
                operators=graph.operators,
                weight_bytes=graph.weight_bytes,
            )
        },
        state=state,
        text=text,
        defaults=defaults,
        context_length=context,
        vocab_size=vocab_size,
        precision=precision_in_words(graph),
        ignored=(*reading.ignored, *ports.ignored),
        permissions=Permissions(
            prefix_cache=model.prefix_cache,
            continuous_batching=model.continuous_batching,
            prefill_chunk=model.prefill_chunk,
            overrides=overrides,
        ),
        losses=tuple(reading.losses),
    )


def _check_document(reading: Reading, document: Section) -> None:
    reading.only(document, _DOCUMENT)
    version = document.raw("schema_version")
    if version is not None and version not in _VERSIONS:
        why = f"{version!r} is not a version that this version of Tokenmill reads; v1 is"
        raise document.wrong("schema_version", why)
    check_capabilities(reading, document, "required_capabilities")
    read_informative_sections(reading, document)
    read_profiles(reading, document)
    refuse_other_sections(reading, document)


def _describe(reading: Reading, document: Section, model: ModelFacts, root: Path) -> _Described:
    pipeline = document.section("pipeline")
    for name in _OLD_PIPELINE:
        if name in pipeline:
            raise UnsupportedModel(
                f"{pipeline.file}: {pipeline.field(name)} asks for a pipeline of several models",
                why="this version runs single decoders",
            )
    reading.only(pipeline, ("workflow",))
    if "workflow" not in pipeline:
        if pipeline.names():
            raise pipeline.wrong("workflow", "it is missing")
        graph = read_onnx(_graph_file(document, root))
        return _Described(graph, read_model_io(reading, model.section.section("io"), graph))
    if "io" in model.section:
        why = f"{pipeline.field('workflow')} is there, too: two descriptions of one thing"
        raise model.section.wrong("io", why)
    workflow = read_workflow(reading, pipeline.section("workflow"))
    manifest = workflow.section.section("manifest")
    reading.only(manifest, ("adapter_abis", "capabilities"))
    declared = check_capabilities(reading, manifest, "capabilities")
    check_values(workflow)
    check_manifest(manifest, declared, used_capabilities(workflow))
    groups = read_state_groups(reading, workflow)
    flow = recognise(reading, workflow, groups, root)
    graph = component_graph(root, flow.decoder)
    facts = read_decoder_ports(reading, workflow, flow.decoder, groups, graph)
    return _Described(graph, facts, workflow, flow)


def _graph_file(document: Section, root: Path) -> Path:
    """Returns model.onnx, or the only graph there: a document without components names none."""
    if not (root / GRAPH_FILE).is_file():
        others = sorted(root.glob("*.onnx"))
        if len(others) != 1:
            names = ", ".join(file.name for file in others) or "no *.onnx"
            raise InvalidPackage(
                f"{root / GRAPH_FILE} is not there",
                why=f"{document.file.name} names no graph, and there is {names}",
                fix=f"Call the decoder {GRAPH_FILE}, or name it in {document.file.name} "
                "pipeline.workflow.components",
            )
        name = others[0].name
    else:
        name = GRAPH_FILE
    return artifact_path(root, Section(document.file, "", {"graph": name}), "graph")


def _checked_state(
    reading: Reading, state: StateContract, model: ModelFacts, facts: DecoderFacts
) -> StateContract:
    """Holds sharing, windows and capacity as declared against what the graph does."""
    if facts.must_share is not None and state.layout is StateLayout.PLAIN:
        section, name = facts.must_share
        why = (
            f"it is {section.brief(name)}, and the graph makes a new tensor of its state each step"
        )
        raise section.wrong(name, why)
    in_place = state.layout is StateLayout.SHARED_BUFFER
    windows = {layer.sliding_window for layer in state.attention}
    if model.sliding_window is not None and model.sliding_window not in windows:
        if in_place:
            why = f"the graph's own attention has {_windows(windows)}"
            reading.refuse(model.attention, "sliding_window", why)
        else:
            why = "all state is kept; the graph's own mask decides what is looked at"
            reading.ignore(model.attention, "sliding_window", why)
    if facts.slides is not None and in_place and windows == {None}:
        section, name = facts.slides
        reading.refuse(section, name, "the graph's own attention has no window")
    if facts.capacity is None:
        return state
    capacity, section, name = facts.capacity
    if state.capacity is not None and state.capacity != capacity:
        why = f"it is {capacity}, and the graph's buffers hold {state.capacity} tokens"
        raise section.wrong(name, why)
    return replace(state, capacity=capacity)


def _windows(windows: set[int | None]) -> str:
    sizes = sorted(size for size in windows if size is not None)
    return f"windows of {', '.join(map(str, sizes))}" if sizes else "no window"


def _vocab_size(model: ModelFacts, graph: OnnxFile, ports: DecoderPorts) -> int:
    declared, width = model.vocab_size, ports.logits.shape[-1]
    if isinstance(width, int):
        if declared is not None and declared > width:
            why = f"it is {declared}, and {graph.path.name} has {width} logits"
            raise model.section.wrong("vocab_size", why)
        return width
    if declared is None:
        why = f"it is missing, and the port {ports.logits.name!r} does not tell it"
        raise model.section.wrong("vocab_size", why)
    return declared


def _context(
    reading: Reading, state: StateContract, model: ModelFacts, described: _Described
) -> int:
    """Returns the most tokens: as declared, no more than the state holds."""
    length = model.context_length
    for bound in _state_bounds(described):
        length = bound if length is None else min(length, bound)
    if state.capacity is not None:
        if model.context_length is not None and model.context_length > state.capacity:
            why = f"the graph's static cache holds {state.capacity} tokens"
            reading.ignore(model.section, "max_sequence_length", why)
        length = state.capacity if length is None else min(length, state.capacity)
    if length is None:
        raise model.section.wrong("max_sequence_length", "it is missing, and nothing else tells it")
    return length


def _state_bounds(described: _Described) -> list[int]:
    if described.workflow is None:
        return []
    cells = described.workflow.cells.values()
    bounds = (described.workflow.literal(cell.maximum) for cell in cells if cell.group is not None)
    return [bound for bound in bounds if bound is not None and bound > 0]


def _defaults(
    reading: Reading, generation: Section, flow: DecoderWorkflow | None
) -> GenerationDefaults:
    """Returns the document's defaults, and those of the inputs that the sampler reads."""
    defaults = read_defaults(reading, generation)
    if flow is None:
        return defaults
    if flow.is_greedy:
        if defaults.temperature not in (None, 0.0):
            section = generation.section("defaults")
            raise section.wrong("temperature", "the workflow's sampler is greedy")
        defaults = GenerationDefaults(temperature=0.0)
    found: dict[str, float | int | None] = {}
    for name, section in flow.sampling.items():
        found[name] = _input_default(section, name)
    for name, value in found.items():
        said = getattr(defaults, name)
        if said is not None and value is not None and said != value and defaults.temperature != 0:
            why = f"it is {said:g}, and {flow.sampling[name].field('default')} is {value:g}"
            raise generation.section("defaults").wrong(name, why)
    merged = {
        name: value
        for name, value in found.items()
        if getattr(defaults, name) is None and value is not None and defaults.temperature != 0
    }
    limit = flow.max_tokens.integer("default", low=1) if flow.max_tokens else None
    return replace(defaults, **merged, max_tokens=limit)  # type: ignore[arg-type]  # checked


def _input_default(section: Section, name: str) -> float | int | None:
    if isinstance(section.raw("default"), list):
        return None
    if name == "top_k":
        return section.integer("default")
    value = section.number("default", 0, 100 if name == "temperature" else 1)
    return (value or None) if name == "top_p" else value


def _read_hints(reading: Reading, root: Path) -> None:
    file = root / HINTS_FILE
    if file.is_file():
        check_hints(read_metadata_file(file))
        reading.ignored.append(Ignored(HINTS_FILE, "hints", "this version follows no hints"))
