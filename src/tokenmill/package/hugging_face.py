"""Reads a Hugging Face export: config.json with ONNX graphs beside it or in `onnx/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_graph import DecoderGraph, read_decoder
from tokenmill.package.decoder_state import Geometry
from tokenmill.package.document import Section, read_document
from tokenmill.package.generation_config import read_generation
from tokenmill.package.graph_files import (
    GraphFile,
    choices_of,
    choose_graph,
    graph_files,
    refuse_companions,
)
from tokenmill.package.identity import fingerprint_of
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import Ignored, ModelPackage, PackageForm
from tokenmill.package.precision import precision_in_words
from tokenmill.package.text_files import DeclaredIds, read_text_files

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
"""The same facts under the names that configurations use for them."""


def read_hugging_face(root: Path, options: LoadOptions) -> ModelPackage:
    """Reads the directory. See `load_package` for what it raises."""
    document = read_document(root / CONFIG_FILE)
    files = graph_files(root)
    _refuse_other_kinds(document, files)
    config = _decoder_config(document)
    chosen, choice = choose_graph(files, options.variant, options.providers)
    decoder = read_decoder(root, chosen.path, _geometry(config), config.evidence("head_dim"))
    _check_layers(config, decoder)
    vocab = decoder.vocab_size(config.integer("vocab_size", low=1), config.evidence("vocab_size"))
    text = read_text_files(options.text_directory(root), _declared_ids(document, config, vocab))
    generation = read_generation(text.generation, lossy=options.lossy)
    context, shortened = _context(config, decoder)
    documents = [root / name for name in (CONFIG_FILE, GENERATION_FILE)]
    return ModelPackage(
        root=root,
        form=PackageForm.HUGGING_FACE,
        fingerprint=fingerprint_of(
            decoder.graph, [document for document in documents if document.is_file()]
        ),
        components={"decoder": decoder.component},
        state=decoder.state,
        text=text.text,
        defaults=generation.defaults,
        context_length=context,
        vocab_size=vocab,
        hidden_size=_integer(config, _WIDTH),
        precision=precision_in_words(decoder.graph),
        ignored=(
            *generation.ignored,
            *text.ignored,
            *shortened,
            *_windows(config, decoder),
            *decoder.ports.ignored,
        ),
        choices=choices_of(choice),
        losses=generation.losses,
    )


def _refuse_other_kinds(config: Section, files: Sequence[GraphFile]) -> None:
    if config.boolean("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{config.evidence('is_encoder_decoder')} is true",
            why="this version runs single decoders",
        )
    refuse_companions(files)


def _decoder_config(document: Section) -> Section:
    """Returns where the decoder is described: `text_config` where the file has one inside."""
    nested = "text_config" in document and _name(document, _LAYERS) is None
    return document.section("text_config") if nested else document


def _name(config: Section, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in config), None)


def _integer(config: Section, names: Sequence[str]) -> int | None:
    name = _name(config, names)
    return None if name is None else config.integer(name, low=1)


def _geometry(config: Section) -> Geometry:
    """Returns the state's sizes; those that follow from others are no more than guesses."""
    kv_heads = config.integer("num_key_value_heads", low=1)
    head_dim = config.integer("head_dim", low=1)
    if kv_heads is not None and head_dim is not None:
        told = config.evidence("num_key_value_heads"), config.evidence("head_dim")
        return Geometry(kv_heads, head_dim, told)
    heads, width = _integer(config, _HEADS), _integer(config, _WIDTH)
    if head_dim is None and heads is not None and width is not None and width % heads == 0:
        head_dim = width // heads
    return Geometry(kv_heads if kv_heads is not None else heads, head_dim, firm=False)


def _check_layers(config: Section, decoder: DecoderGraph) -> None:
    """Refuses a graph whose layers with state are not those that the configuration tells."""
    name = _name(config, _LAYERS)
    layers = None if name is None else config.integer(name, low=1)
    if name is None or layers is None:
        return
    expected = layers
    types = config.text_list("layer_types")
    if types:
        if len(types) != layers:
            raise config.wrong("layer_types", f"it has {len(types)} layers, {name} says {layers}")
        expected = sum(1 for kind in types if "attention" in kind and "linear" not in kind)
    shared = config.integer("num_kv_shared_layers") or 0
    found = len(decoder.state.attention)
    if found not in (expected, expected - shared):
        kept = "keep state" if expected != layers else "are declared"
        raise InvalidPackage(
            f"{config.evidence(name)} is {layers}, of which {expected} {kept}"
            if expected != layers
            else f"{config.evidence(name)} is {layers}",
            why=f"{decoder.graph.path.name} has the state of {found} layers",
            fix="Correct the field, or export the package again",
        )


def _declared_ids(document: Section, config: Section, vocab_size: int) -> DeclaredIds:
    def ids(name: str) -> tuple[tuple[int, str], ...]:
        sections = (document, config) if config is not document else (document,)
        return tuple(
            (token_id, section.evidence(name))
            for section in sections
            for token_id in section.integers(name)
        )

    def one(name: str) -> int | None:
        found = [token_id for token_id, _ in ids(name) if 0 <= token_id < vocab_size]
        return found[0] if found else None

    return DeclaredIds(
        bos=one("bos_token_id"),
        eos=ids("eos_token_id"),
        pad=one("pad_token_id"),
        vocab_size=vocab_size,
        evidence_bos=document.evidence("bos_token_id"),
    )


def _context(config: Section, decoder: DecoderGraph) -> tuple[int, tuple[Ignored, ...]]:
    """Returns the most tokens, and a note where the graph allows fewer than are declared."""
    name = _name(config, _CONTEXT)
    declared = None if name is None else config.integer(name, low=1)
    if name is not None and declared is not None:
        return decoder.shortened(declared, config.evidence(name))
    limits = decoder.limits()
    if not limits:
        raise config.wrong(
            _CONTEXT[0],
            "it is missing, and the graph does not tell how long a text may be",
            fix="Say it there",
        )
    return limits[0].tokens, ()


def _windows(config: Section, decoder: DecoderGraph) -> tuple[Ignored, ...]:
    """Returns a note where a declared window is not one that the graph's operators tell.

    The graph computes what it computes; the note is for people who compare.
    """
    size = config.integer("sliding_window")
    if not size or config.boolean("use_sliding_window") is False:
        return ()
    windows = {layer.sliding_window for layer in decoder.state.attention}
    if size in windows:
        return ()
    why = "what the graph's own masks and operators look at decides"
    return (Ignored(config.evidence("sliding_window"), str(size), why),)
