"""Reads an onnxruntime-genai directory: genai_config.json, a decoder graph, tokenizer files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenmill.core.errors import UnsupportedModel
from tokenmill.core.ids import Fingerprint
from tokenmill.package.decoder_graph import DecoderGraph, read_decoder
from tokenmill.package.decoder_state import Geometry
from tokenmill.package.document import Section, read_document
from tokenmill.package.genai_ports import declare_ports
from tokenmill.package.identity import fingerprint_of
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import (
    GenerationDefaults,
    Ignored,
    ModelPackage,
    PackageForm,
    StateContract,
)
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.precision import precision_in_words
from tokenmill.package.search_defaults import read_search
from tokenmill.package.state_pairs import GROUP_QUERY
from tokenmill.package.text_files import DeclaredIds, read_text_files

CONFIG_FILE = "genai_config.json"
SIDECAR_FILE = "tokenmill.json"

_REFUSED_COMPONENTS = ("encoder", "vision", "speech", "embedding")


def read_genai(root: Path, options: LoadOptions) -> ModelPackage:
    """Reads the directory. See `load_package` for what it raises."""
    config = read_document(root / CONFIG_FILE)
    model = config.section("model")
    decoder = model.section("decoder")
    _refuse_other_kinds(model, decoder)
    read = _read_graph(root, decoder)
    graph = read.graph
    sidecar = _read_sidecar(root)
    vocab_size = read.vocab_size(model.integer("vocab_size", low=1), model.evidence("vocab_size"))
    text = read_text_files(options.text_directory(root), _declared_ids(model, vocab_size))
    search = read_search(config.section("search"), lossy=options.lossy)
    defaults, more = _defaults(search.defaults, sidecar)
    documents = [root / CONFIG_FILE, *([root / SIDECAR_FILE] if sidecar else [])]
    context = model.integer("context_length", low=1)
    if context is None:
        raise model.wrong("context_length", "it is missing")
    context, shortened = read.shortened(context, model.evidence("context_length"))
    providers = _provider_options(decoder.section("session_options"))
    provenance = sidecar.strings("provenance") if sidecar else {}
    if sidecar:
        sidecar.raw("blocks")
    return ModelPackage(
        root=root,
        form=PackageForm.GENAI,
        fingerprint=_fingerprint(sidecar, graph, documents),
        components={"decoder": read.component},
        state=read.state,
        text=text.text,
        defaults=defaults,
        context_length=context,
        vocab_size=vocab_size,
        hidden_size=decoder.integer("hidden_size", low=1),
        precision=(sidecar and sidecar.text("precision")) or precision_in_words(graph),
        provider_options=providers,
        provenance=provenance,
        ignored=(
            *search.ignored,
            *more,
            *text.ignored,
            *_windows(decoder, read.state),
            *shortened,
            *read.ports.ignored,
            *_unused(config, model, decoder),
            *_notes(sidecar),
        ),
        losses=search.losses,
    )


def _refuse_other_kinds(model: Section, decoder: Section) -> None:
    for name in _REFUSED_COMPONENTS:
        if name in model:
            raise UnsupportedModel(
                f"{model.evidence(name)} asks for a pipeline of several models",
                why="this version runs single decoders",
            )
    if "pipeline" in decoder:
        raise UnsupportedModel(
            f"{decoder.evidence('pipeline')} splits the decoder into several graphs",
            why="this version runs decoders of one graph",
        )


def _read_graph(root: Path, decoder: Section) -> DecoderGraph:
    """Reads the decoder's graph, and holds what is declared of it against it."""
    place = f"{decoder.file.name} {decoder.path}"
    geometry = Geometry(
        decoder.integer("num_key_value_heads", low=1),
        decoder.integer("head_size", low=1),
        (decoder.evidence("num_key_value_heads"), decoder.evidence("head_size")),
    )
    read = read_decoder(
        root,
        root / _graph_name(decoder),
        geometry,
        place,
        lambda graph: declare_ports(graph, decoder),
        ports_settle=f"{place}.inputs and {decoder.field('outputs')}",
    )
    layers = decoder.integer("num_hidden_layers")
    if layers != len(read.ports.state):
        why = f"it is {layers}, and {read.graph.path.name} has the state of"
        raise decoder.wrong("num_hidden_layers", f"{why} {len(read.ports.state)} layers")
    heads = decoder.integer("num_attention_heads", low=1)
    found = {
        node.attributes.get("num_heads")
        for node in read.graph.nodes
        if node.operator == GROUP_QUERY
    }
    # Layers may differ.
    if heads is not None and found and heads not in found:
        have = ", ".join(sorted(map(str, found)))
        why = f"it is {heads}, but the attention of {read.graph.path.name} has {have}"
        raise decoder.wrong("num_attention_heads", why)
    return read


def _windows(decoder: Section, state: StateContract) -> tuple[Ignored, ...]:
    """Checks `sliding_window`: the runtime's own windows change results, the graph's do not."""
    if "sliding_window" not in decoder:
        return ()
    section, layers = decoder.section("sliding_window"), state.attention
    size = section.integer("window_size", low=1)
    chosen = section.integers("layers")
    for name in ("slide_key_value_cache", "slide_inputs"):
        if section.boolean(name) is not False:
            raise UnsupportedModel(
                f"{section.evidence(name)} is {'true' if name in section else 'not false'}",
                why="this version does not cut prompts or state into windows",
            )
    for layer in chosen or range(len(layers)):
        window = layers[layer].sliding_window if 0 <= layer < len(layers) else None
        if window != size:
            raise UnsupportedModel(
                f"{section.evidence('window_size')} is {size} for layer {layer}",
                why=f"the graph's own attention there has {window or 'no window'}",
            )
    if "cache_slack" not in section:
        return ()
    slack = str(section.raw("cache_slack"))
    why = "state is kept whole; the graph itself looks back at the window only"
    return (Ignored(section.evidence("cache_slack"), slack, why),)


def _graph_name(decoder: Section) -> str:
    name = decoder.text("filename")
    if not name:
        raise decoder.wrong("filename", "it is missing" if name is None else "it is empty")
    if "\0" in name:
        raise decoder.wrong("filename", f"{name!r} is not a file's name")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise decoder.wrong("filename", f"{name!r} leads out of the package")
    return name


def _read_sidecar(root: Path) -> Section | None:
    file = root / SIDECAR_FILE
    if not file.is_file():
        return None
    sidecar = read_document(file)
    form = sidecar.integer("format")
    if form != 1:
        raise sidecar.wrong("format", f"{form} is not a format that this version reads")
    return sidecar


def _declared_ids(model: Section, vocab_size: int) -> DeclaredIds:
    evidence = model.evidence("eos_token_id")
    return DeclaredIds(
        bos=model.integer("bos_token_id"),
        eos=tuple((token_id, evidence) for token_id in model.integers("eos_token_id")),
        pad=model.integer("pad_token_id"),
        vocab_size=vocab_size,
        evidence_bos=model.evidence("bos_token_id"),
    )


def _defaults(
    defaults: GenerationDefaults, sidecar: Section | None
) -> tuple[GenerationDefaults, tuple[Ignored, ...]]:
    """Lays the sidecar's defaults over those of `search`, which has no room for all of them."""
    if sidecar is None:
        return defaults, ()
    own = sidecar.section("defaults")
    found: dict[str, float | int | None] = {
        "temperature": own.number("temperature", 0, 100),
        "top_k": own.integer("top_k"),
        "top_p": own.number("top_p", 0, 1) or None,
        "min_p": own.number("min_p", 0, 1),
        "max_tokens": own.integer("max_tokens", low=1),
    }
    penalty = own.number("repetition_penalty", 0, 1e9)
    ignored: tuple[Ignored, ...] = ()
    if penalty not in (None, 1):
        why = "not executed by this version"
        ignored = (Ignored(own.evidence("repetition_penalty"), f"{penalty:g}", why),)
    told = {name: value for name, value in found.items() if value is not None}
    return replace(defaults, **told), ignored  # type: ignore[arg-type]  # checked above


def _notes(sidecar: Section | None) -> tuple[Ignored, ...]:
    """Returns what the importer wants a user to know, and the fields that nobody reads."""
    if sidecar is None:
        return ()
    warnings = sidecar.raw("warnings") or []
    if not isinstance(warnings, list):
        raise sidecar.wrong("warnings", "it is not a list")
    return (
        *(
            Ignored(sidecar.evidence("warnings"), str(text), "noted by the importer")
            for text in warnings
        ),
        *(
            Ignored(f"{SIDECAR_FILE} {field}", value, "not known to this version")
            for field, value in sidecar.unused()
        ),
    )


def _provider_options(session: Section) -> list[tuple[str, dict[str, str]]]:
    value = session.raw("provider_options") or []
    if not isinstance(value, list):
        raise session.wrong("provider_options", "it is not a list")
    out: list[tuple[str, dict[str, str]]] = []
    for index, item in enumerate(value):
        name = f"provider_options[{index}]"
        if not isinstance(item, dict):
            raise session.wrong(name, "it is not {provider: {option: value}}")
        provider = Section(session.file, session.field(name), item)
        out.extend((key, provider.strings(key)) for key in item)
    return out


def _fingerprint(sidecar: Section | None, graph: OnnxFile, documents: list[Path]) -> Fingerprint:
    declared = sidecar.text("fingerprint") if sidecar else None
    return Fingerprint(declared) if declared else fingerprint_of(graph, documents)


def _unused(config: Section, model: Section, decoder: Section) -> tuple[Ignored, ...]:
    for section, name in ((model, "type"), (decoder, "num_attention_heads")):
        section.raw(name)
    known = {
        "model.decoder.session_options.log_id": "the runtime's own log is not used",
    }
    return tuple(
        Ignored(f"{CONFIG_FILE} {field}", value, known.get(field, "not known to this version"))
        for field, value in config.unused()
    )
