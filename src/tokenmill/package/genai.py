"""Reads an onnxruntime-genai directory: genai_config.json, a decoder graph, tokenizer files."""

from __future__ import annotations

from pathlib import Path

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.core.ids import Fingerprint
from tokenmill.package.decoder_ports import DecoderPorts, bind_ports
from tokenmill.package.document import Section, read_document
from tokenmill.package.external_data import check_external_data
from tokenmill.package.identity import fingerprint_of
from tokenmill.package.model_package import (
    AttentionState,
    Component,
    GenerationDefaults,
    Ignored,
    ModelPackage,
    PackageForm,
    StateContract,
    StateLayout,
)
from tokenmill.package.onnx_file import OnnxFile, read_onnx
from tokenmill.package.precision import precision_in_words
from tokenmill.package.search_defaults import read_search
from tokenmill.package.text_files import DeclaredIds, read_text_files

CONFIG_FILE = "genai_config.json"
SIDECAR_FILE = "tokenmill.json"

_REFUSED_COMPONENTS = ("encoder", "vision", "speech", "embedding")


def read_genai(root: Path) -> ModelPackage:
    """Reads the directory. See `load_package` for what it raises."""
    config = read_document(root / CONFIG_FILE)
    model = config.section("model")
    decoder = model.section("decoder")
    _refuse_other_kinds(model, decoder)
    graph = read_onnx(root / _required_text(decoder, "filename"))
    check_external_data(graph, root)
    ports = bind_ports(graph, decoder)
    sidecar = _read_sidecar(root)
    vocab_size = _vocab_size(model, graph, ports)
    text = read_text_files(root, _declared_ids(model, vocab_size))
    search = read_search(config.section("search"))
    attention, share = _attention(decoder, ports, graph), search.share_buffer
    documents = [root / CONFIG_FILE, *([root / SIDECAR_FILE] if sidecar else [])]
    context = model.integer("context_length", low=1)
    if context is None:
        raise model.wrong("context_length", "it is missing")
    providers = _provider_options(decoder.section("session_options"))
    provenance = sidecar.strings("provenance") if sidecar else {}
    if sidecar:
        sidecar.raw("blocks")
    return ModelPackage(
        root=root,
        form=PackageForm.GENAI,
        fingerprint=_fingerprint(sidecar, graph, documents),
        components={
            "decoder": Component(
                name="decoder",
                file=graph.path,
                bindings=ports.bindings,
                operators=graph.operators,
                weight_bytes=graph.weight_bytes,
            )
        },
        state=StateContract(_layout(graph, share), attention),
        text=text.text,
        defaults=_defaults(search.defaults, sidecar),
        context_length=context,
        vocab_size=vocab_size,
        hidden_size=decoder.integer("hidden_size", low=1),
        precision=(sidecar and sidecar.text("precision")) or precision_in_words(graph),
        provider_options=providers,
        provenance=provenance,
        ignored=(*search.ignored, *text.ignored, *_unused(config, model, decoder)),
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
    if "sliding_window" in decoder:
        raise UnsupportedModel(
            f"{decoder.evidence('sliding_window')} asks for windowed prompt processing",
            why="this version does not cut prompts into windows",
        )


def _required_text(section: Section, name: str) -> str:
    value = section.text(name)
    if not value:
        raise section.wrong(name, "it is missing")
    return value


def _read_sidecar(root: Path) -> Section | None:
    file = root / SIDECAR_FILE
    if not file.is_file():
        return None
    sidecar = read_document(file)
    form = sidecar.integer("format")
    if form != 1:
        raise sidecar.wrong("format", f"{form} is not a format that this version reads")
    return sidecar


def _vocab_size(model: Section, graph: OnnxFile, ports: DecoderPorts) -> int:
    declared = model.integer("vocab_size", low=1)
    width = ports.logits.shape[-1]
    if isinstance(width, int) and declared is not None and width < declared:
        raise InvalidPackage(
            f"{model.evidence('vocab_size')} is {declared}",
            why=f"the port {ports.logits.name!r} of {graph.path.name} has {width} logits",
            fix="Correct the field, or export the package again",
        )
    size = width if isinstance(width, int) else declared
    if size is None:
        raise model.wrong("vocab_size", "it is missing, and the graph does not tell it")
    return size


def _declared_ids(model: Section, vocab_size: int) -> DeclaredIds:
    evidence = model.evidence("eos_token_id")
    return DeclaredIds(
        bos=model.integer("bos_token_id"),
        eos=tuple((token_id, evidence) for token_id in model.integers("eos_token_id")),
        pad=model.integer("pad_token_id"),
        vocab_size=vocab_size,
        evidence_bos=model.evidence("bos_token_id"),
    )


def _attention(
    decoder: Section, ports: DecoderPorts, graph: OnnxFile
) -> tuple[AttentionState, ...]:
    heads = decoder.integer("num_key_value_heads", low=1)
    head_dim = decoder.integer("head_size", low=1)
    windows = _windows(graph)
    layers = []
    for layer, port in enumerate(ports.past_keys):
        if len(port.shape) != 4:
            raise InvalidPackage(
                f"the port {port.name!r} of {graph.path.name}",
                why=f"it has {len(port.shape)} axes, not [batch, heads, tokens, dimension]",
            )
        layers.append(
            AttentionState(
                layer=layer,
                num_kv_heads=_agreed(
                    decoder, "num_key_value_heads", heads, port.shape[1], port.name
                ),
                head_dim=_agreed(decoder, "head_size", head_dim, port.shape[3], port.name),
                dtype=port.dtype,
                sliding_window=windows.get(port.name),
            )
        )
    return tuple(layers)


def _agreed(
    section: Section, name: str, declared: int | None, of_graph: int | str, port: str
) -> int:
    if isinstance(of_graph, int):
        if declared is not None and declared != of_graph:
            raise section.wrong(name, f"it is {declared}, but the port {port!r} has {of_graph}")
        return of_graph
    if declared is None:
        raise section.wrong(name, f"it is missing, and the port {port!r} does not tell it")
    return declared


def _windows(graph: OnnxFile) -> dict[str, int]:
    """Returns past-key port to window, for the layers that look back at a window only."""
    out = {}
    for node in graph.nodes:
        window = node.attributes.get("local_window_size", -1)
        if isinstance(window, int) and window > 0 and len(node.inputs) > 3:
            out[node.inputs[3]] = window
    return out


def _layout(graph: OnnxFile, share_buffer: bool) -> StateLayout:
    in_place = "com.microsoft.GroupQueryAttention" in graph.operators
    return StateLayout.SHARED_BUFFER if in_place and share_buffer else StateLayout.PLAIN


def _defaults(defaults: GenerationDefaults, sidecar: Section | None) -> GenerationDefaults:
    if sidecar is None:
        return defaults
    own = sidecar.section("defaults")
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens"):
        own.raw(name)
    return defaults


def _provider_options(session: Section) -> list[tuple[str, dict[str, str]]]:
    value = session.raw("provider_options")
    out: list[tuple[str, dict[str, str]]] = []
    for index, item in enumerate(value or []):
        if not isinstance(item, dict) or not all(isinstance(v, dict) for v in item.values()):
            raise session.wrong(
                f"provider_options[{index}]", "it is not {provider: {option: value}}"
            )
        out.extend(
            (name, {k: str(v) for k, v in options.items()}) for name, options in item.items()
        )
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
