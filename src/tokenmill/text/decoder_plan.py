"""Reads a tokenizer's decoder description into a chain of streaming stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenmill.text import decoder_stages as stages

# The joins that WordPiece's cleanup undoes, in the order in which it undoes them.
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """How a tokenizer's pieces become text.

    Attributes:
        streaming: a function that makes the chain of stages for one output, or None where some
            link can only be applied to the whole output.
        piece_bytes: the bytes that a piece adds when it is not the first of the output; None
            where only the whole decoder can tell.
    """

    streaming: Callable[[], list[stages.Stage]] | None
    piece_bytes: Callable[[str], bytes] | None


class _UnstreamableError(Exception):
    """A link that must see the whole output."""


def plan_of(decoder: Mapping[str, Any] | None) -> DecoderPlan:
    """Plans a decoder.

    Args:
        decoder: `decoder` of tokenizer.json; None where there is none, which joins by spaces.
    """
    links = _flatten(decoder)
    factories: list[Callable[[], stages.Stage]] = []
    try:
        fused = False
        for index, link in enumerate(links):
            if link["type"] == "BPEDecoder" and any(
                later["type"] != "Fuse" for later in links[index + 1 :]
            ):
                # Its stage cuts pieces at the marks; a later link would see other pieces than
                # it should.
                raise _UnstreamableError
            factory, fuses = _stage(link, fused)
            fused = fused or fuses
            if factory is not None:
                factories.append(factory)
    except _UnstreamableError:
        return DecoderPlan(None, None)
    return DecoderPlan(lambda: [make() for make in factories], _piece_bytes(links))


def _flatten(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return [{"type": "Join"}]
    if decoder["type"] == "Sequence":
        return [link for inner in decoder["decoders"] for link in _flatten(inner)]
    return [decoder]


def _stage(link: Mapping[str, Any], fused: bool) -> tuple[Callable[[], stages.Stage] | None, bool]:
    """Returns the stage's factory (None for a link that changes nothing), and whether it fuses.

    After a link that fuses, the later ones see the output as one piece, which arrives here in
    parts: what they do must not depend on where it is cut.
    """
    kind = link["type"]
    if fused:
        return _stage_on_fused(link), True
    if kind == "Fuse":
        return None, True
    if kind == "ByteLevel":
        return stages.ByteLevel, True
    if kind == "ByteFallback":
        return stages.ByteFallback, False
    if kind in _PER_PIECE:
        first, later = _PER_PIECE[kind](link)
        if first is later:
            return partial(stages.EachPiece, later), False
        return partial(stages.FirstPiece, first, later), False
    if kind == "BPEDecoder":
        return partial(stages.WordEnd, link["suffix"]), True
    if kind == "CTC":
        return partial(stages.Deduplicate, _ctc(link)), False
    raise _UnstreamableError


def _stage_on_fused(link: Mapping[str, Any]) -> Callable[[], stages.Stage] | None:
    kind = link["type"]
    if kind == "Fuse":
        return None
    if kind == "Strip" and link["stop"] == 0:
        return partial(stages.StripStart, link["content"], link["start"])
    if kind == "Metaspace":
        first, _ = _metaspace(link)
        return partial(stages.EachPiece, first)
    if kind == "Replace" and len(link["pattern"].get("String", "")) == 1:
        return partial(stages.EachPiece, _replace(link)[0])
    raise _UnstreamableError


_Pair = tuple[Callable[[str], str], Callable[[str], str]]


def _replace(link: Mapping[str, Any]) -> _Pair:
    pattern, content = link["pattern"], link["content"]
    if pattern.get("String"):
        function = _literal_replacement(pattern["String"], content)
        return function, function
    from tokenizers import Regex, decoders

    # Its regular expressions are Oniguruma's, which Python's differ from: let it apply them.
    source = Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"]
    native = decoders.Replace(source, content)

    def apply(piece: str) -> str:
        return str(native.decode([piece]))

    return apply, apply


def _literal_replacement(literal: str, content: str) -> Callable[[str], str]:
    return lambda piece: piece.replace(literal, content)


def _strip(link: Mapping[str, Any]) -> _Pair:
    content, start, stop = link["content"], link["start"], link["stop"]

    def apply(piece: str) -> str:
        head = min(start, len(piece) - len(piece.lstrip(content)))
        piece = piece[head:]
        tail = min(stop, len(piece) - len(piece.rstrip(content)))
        return piece[: len(piece) - tail]

    return apply, apply


def _metaspace(link: Mapping[str, Any]) -> _Pair:
    mark = link["replacement"]
    never = link.get("prepend_scheme", "always") == "never"

    def later(piece: str) -> str:
        return piece.replace(mark, " ")

    def first(piece: str) -> str:
        return piece.replace(mark, "")

    return (later if never else first), later


def _word_piece(link: Mapping[str, Any]) -> _Pair:
    prefix, cleanup = link["prefix"], link["cleanup"]

    def first(piece: str) -> str:
        return _clean(piece) if cleanup else piece

    def later(piece: str) -> str:
        return first(piece[len(prefix) :] if piece.startswith(prefix) else " " + piece)

    return first, later


def _join(_: Mapping[str, Any]) -> _Pair:
    return str, lambda piece: " " + piece


_PER_PIECE: Mapping[str, Callable[[Mapping[str, Any]], _Pair]] = {
    "Replace": _replace,
    "Strip": _strip,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "Join": _join,
}


def _ctc(link: Mapping[str, Any]) -> Callable[[str], str]:
    pad, word, cleanup = link["pad_token"], link["word_delimiter_token"], link["cleanup"]

    def apply(piece: str) -> str:
        piece = piece.replace(pad, "")
        return _clean(piece).replace(word, " ") if cleanup else piece

    return apply


def _clean(text: str) -> str:
    if " " in text:
        for dirty, clean in _CLEANUP:
            text = text.replace(dirty, clean)
    return text


def _piece_bytes(links: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    """The bytes of a piece in the middle of an output, as the links make them."""
    steps: list[Callable[[str], str]] = []
    byte_level = byte_fallback = False
    for link in links:
        kind = link["type"]
        if kind in ("Fuse", "ByteLevel", "BPEDecoder"):
            byte_level = kind == "ByteLevel"
            if kind == "BPEDecoder":
                steps.append(_literal_replacement(link["suffix"], " "))
            # What acts on the joined output acts at its start, which is not where this piece is.
            break
        if kind == "ByteFallback":
            byte_fallback = True
        elif kind == "CTC":
            steps.append(_ctc(link))
        else:
            steps.append(_PER_PIECE[kind](link)[1])

    def apply(piece: str) -> bytes:
        if byte_fallback and (byte := stages.byte_of(piece)) is not None:
            return bytes((byte,))
        for step in steps:
            piece = step(piece)
        return stages.byte_level_bytes(piece) if byte_level else piece.encode()

    return apply
