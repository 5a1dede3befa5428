"""Which graph of a directory to take, where it holds the same decoder in several precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import InvalidOption, UnsupportedModel
from tokenmill.package.model_package import Choice
from tokenmill.package.onnx_file import read_onnx
from tokenmill.package.state_pairs import STATE_DTYPES

FULL = ("", "fp32")
_ON_CPU = (*FULL, "q4", "int8", "quantized", "q8", "uint8", "bnb4", "fp16", "bf16", "q4f16")
_ELSEWHERE = (*FULL, "fp16", "bf16", "q4f16", "q4", "int8", "quantized", "q8", "uint8", "bnb4")
"""Precisions by the endings of file names, best first. Full precision stands first everywhere:
it alone gives the model's own results. 16-bit arithmetic is slow on a CPU and fast elsewhere."""

_IN_WORDS = {
    "": "full precision",
    "fp32": "full precision",
    "fp16": "16-bit floating point",
    "bf16": "16-bit floating point",
    "q4": "4-bit weights",
    "q4f16": "4-bit weights, 16-bit arithmetic",
    "bnb4": "4-bit weights",
    "int8": "8-bit weights",
    "uint8": "8-bit weights",
    "q8": "8-bit weights",
    "quantized": "8-bit weights",
}
_ALIASES = {"fp32": FULL, "full": FULL, "q8": ("q8", "int8", "quantized")}

BASES = ("model", "decoder_model_merged", "decoder_with_past_model", "decoder_model")
"""Names of decoders, in order of preference; a decoder without state comes after all of them."""

_COMPANIONS = {
    "encoder_model": "an encoder and a decoder",
    "vision_encoder": "a vision encoder and a decoder",
    "vision_model": "a vision encoder and a decoder",
    "audio_encoder": "an audio encoder and a decoder",
    "embed_tokens": "an embedding and a decoder that takes its result",
    "prepare_inputs_embeds": "an embedding and a decoder that takes its result",
}
"""Graphs that stand beside a decoder which needs them, by the file's base name."""


@dataclass(frozen=True, slots=True)
class GraphFile:
    """An ONNX file of the directory.

    Attributes:
        name: relative to the directory, with "/".
        base: the file's name without ending and precision, e.g. "model".
        precision: the ending that tells it, e.g. "q4"; "" where the name tells none.
    """

    path: Path
    name: str
    base: str
    precision: str

    def matches(self, variant: str) -> bool:
        """Whether a user who writes this means this file: a path, a name, or a precision."""
        wanted = variant.lower().removeprefix("_")
        names = (self.name, self.path.name, self.path.stem)
        precisions = _ALIASES.get(wanted, (wanted,))
        return variant in names or self.precision in precisions


def graph_files(root: Path) -> list[GraphFile]:
    """Returns the graphs in the directory and in its folder `onnx`, by name."""
    paths = [*sorted(root.glob("*.onnx")), *sorted(root.glob("onnx/*.onnx"))]
    return [graph_file(root, path.relative_to(root).as_posix()) for path in paths]


def graph_file(root: Path, name: str) -> GraphFile:
    """Returns what a graph's name tells of it; the file need not be there."""
    path = root / name
    base, _, ending = path.stem.rpartition("_")
    known = bool(base) and ending in _IN_WORDS
    return GraphFile(path, name, base if known else path.stem, ending if known else "")


def refuse_companions(files: Sequence[GraphFile]) -> None:
    """Refuses a directory whose decoder needs other graphs beside it.

    Raises:
        UnsupportedModel: it does; names the file.
    """
    for file in files:
        if file.base in _COMPANIONS:
            raise UnsupportedModel(
                f"{file.name} is there: the model is {_COMPANIONS[file.base]}",
                why="this version runs single decoders",
            )


def by_preference(
    files: Sequence[GraphFile], variant: str | None, providers: Sequence[str]
) -> list[GraphFile]:
    """Returns the graphs of the best precision that is there, the preferred name first.

    Args:
        files, variant, providers: see `choose_graph`.

    Raises:
        InvalidOption: no file is what the caller asks for; they are listed.
    """
    able = files if variant is None else [file for file in files if file.matches(variant)]
    if not able:
        raise no_such_variant(variant or "", files)
    order = _ON_CPU if _on_cpu(providers) else _ELSEWHERE
    best = min(order.index(file.precision) for file in able)
    of_best = [file for file in able if file.precision == order[best]]
    return sorted(of_best, key=lambda file: (_rank(file), file.name.count("/")))


def choose_graph(
    files: Sequence[GraphFile], variant: str | None, providers: Sequence[str]
) -> tuple[GraphFile, Choice | None]:
    """Returns the graph to read, and the choice where there are several.

    Args:
        files: at least one, all of them decoders.
        variant: what the caller asks for; None takes the best precision for the provider.
        providers: short names, the preferred first; empty is the CPU.

    Raises:
        InvalidOption: no file is what the caller asks for; they are listed.
    """
    of_best = by_preference(files, variant, providers)
    stated = [file for file in of_best if _has_state(file.path)] if len(of_best) > 1 else of_best
    chosen = (stated or of_best)[0]
    if len(files) == 1:
        return chosen, None
    words = _IN_WORDS[chosen.precision]
    if variant is not None:
        why = f"the variant {variant!r} was asked for"
    elif chosen.precision in FULL:
        why = f"{words}: the model's own results"
    else:
        where = "on the CPU" if _on_cpu(providers) else f"with {providers[0]!r}"
        why = f"{words}: the best of those that are there {where}"
    others = {
        file.name: _reason(file, chosen, of_best, stated) for file in files if file is not chosen
    }
    return chosen, Choice("file", chosen.name, why, others)


def no_such_variant(variant: str, files: Sequence[GraphFile]) -> InvalidOption:
    """Returns the error for a variant that no file is."""
    return InvalidOption(
        f"variant is {variant!r}",
        why=f"there are {', '.join(file.name for file in files[:12])}",
        fix="Give one of these names, or the ending that tells its precision",
    )


def _on_cpu(providers: Sequence[str]) -> bool:
    return not providers or providers[0] == "cpu"


def _rank(file: GraphFile) -> int:
    return BASES.index(file.base) if file.base in BASES else len(BASES)


def _has_state(path: Path) -> bool:
    return any(
        port.dtype in STATE_DTYPES and len(port.shape) > 2 for port in read_onnx(path).inputs
    )


def _reason(
    file: GraphFile,
    chosen: GraphFile,
    of_best: Sequence[GraphFile],
    stated: Sequence[GraphFile],
) -> str:
    if file.precision != chosen.precision:
        return f"{_IN_WORDS[file.precision]}; --variant {file.precision or file.name} takes it"
    if file in of_best and file not in stated:
        return "it keeps no state"
    return f"{chosen.name} is preferred; --variant {file.name} takes it"


def choices_of(choice: Choice | None) -> tuple[Choice, ...]:
    """Returns the choice for `ModelPackage.choices`."""
    return () if choice is None else (choice,)


PRECISIONS: Mapping[str, str] = _IN_WORDS
"""Endings of file names to what they mean."""
