"""Reads a bare graph: an ONNX file and tokenizer.json; everything comes from these."""

from __future__ import annotations

from pathlib import Path

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.decoder_graph import DecoderGraph, read_decoder
from tokenmill.package.decoder_state import Geometry
from tokenmill.package.document import read_document
from tokenmill.package.generation_config import read_generation
from tokenmill.package.graph_files import (
    GraphFile,
    choices_of,
    graph_files,
    no_such_variant,
)
from tokenmill.package.identity import fingerprint_of
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import (
    Choice,
    Ignored,
    ModelPackage,
    PackageForm,
    TextContract,
)
from tokenmill.package.precision import precision_in_words
from tokenmill.package.text_files import DeclaredIds, read_text_files

SETTLE = "a config.json beside it"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_UNLIMITED = 10**9
"""Tokenizer files write an enormous number where no length is meant."""


def read_bare(root: Path, options: LoadOptions) -> ModelPackage:
    """Reads the directory. See `load_package` for what it raises."""
    file, choice = _choose(root, options.variant)
    decoder = read_decoder(root, file.path, Geometry(), SETTLE)
    vocab = decoder.vocab_size(None, f"vocab_size of {SETTLE}")
    text = read_text_files(
        options.text_directory(root), DeclaredIds(bos=None, eos=(), pad=None, vocab_size=vocab)
    )
    generation = read_generation(text.generation, lossy=options.lossy)
    return ModelPackage(
        root=root,
        form=PackageForm.BARE,
        fingerprint=fingerprint_of(decoder.graph, []),
        components={"decoder": decoder.component},
        state=decoder.state,
        text=text.text,
        defaults=generation.defaults,
        context_length=_context(root, decoder),
        vocab_size=vocab,
        precision=precision_in_words(decoder.graph),
        ignored=(
            *generation.ignored,
            *text.ignored,
            *_without_end(text.text),
            *decoder.ports.ignored,
        ),
        choices=choices_of(choice),
        losses=generation.losses,
    )


def _choose(root: Path, variant: str | None) -> tuple[GraphFile, Choice | None]:
    files = graph_files(root)
    able = files if variant is None else [file for file in files if file.matches(variant)]
    if not able:
        raise no_such_variant(variant or "", files)
    if len(able) > 1:
        raise InvalidPackage(
            f"{root} holds {len(able)} graphs",
            why=", ".join(file.name for file in able[:12]),
            fix="Choose one with --variant, by its name",
        )
    if len(files) == 1:
        return able[0], None
    others = {file.name: "another graph" for file in files if file is not able[0]}
    why = f"the variant {variant!r} was asked for"
    return able[0], Choice("file", able[0].name, why, others)


def _context(root: Path, decoder: DecoderGraph) -> int:
    """Returns the most tokens: the graph's own limit, else the tokenizer's."""
    limits = decoder.limits()
    if limits:
        return limits[0].tokens
    file = root / _TOKENIZER_CONFIG
    if file.is_file():
        length = read_document(file).number("model_max_length", 1, float("inf"))
        if length is not None and length < _UNLIMITED:
            return int(length)
    raise InvalidPackage(
        f"nothing tells how long a text {decoder.graph.path.name} may see",
        why="it has no table of positions and no cache of a fixed size",
        fix=f"Say it in {_TOKENIZER_CONFIG} model_max_length, or in max_position_embeddings of "
        f"{SETTLE}",
    )


def _without_end(text: TextContract) -> tuple[Ignored, ...]:
    if text.eos_token_ids:
        return ()
    why = "no file says which token ends a text; requests end at their limits and stop texts"
    return (Ignored("eos_token_id", "none", why),)
