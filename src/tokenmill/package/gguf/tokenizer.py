"""Builds `tokenizer.json` (Hugging Face tokenizers) from a GGUF file's vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.metadata import Metadata, missing
from tokenmill.package.gguf.pretokenizers import FALLBACK, PRE_TOKENIZERS
from tokenmill.package.gguf.vocabulary import PREFIX, TokenType, Vocabulary

_SPACE = "\u2581"


class BuiltTokenizer(NamedTuple):
    """A tokenizer and what the other documents need to know of it.

    Attributes:
        document: of `tokenizer.json`.
        add_bos, add_eos: whether encoding adds them.
        class_name: for `tokenizer_config.json`.
        warnings: what was assumed.
    """

    document: dict[str, Any]
    add_bos: bool
    add_eos: bool
    class_name: str
    warnings: tuple[str, ...] = ()


def build_tokenizer(metadata: Metadata, vocabulary: Vocabulary) -> BuiltTokenizer:
    """Builds the tokenizer.

    Raises:
        UnsupportedModel: a kind of tokenizer or pre-tokenizer that is not in the tables.
        InvalidPackage: the vocabulary contradicts itself.
    """
    model = metadata.text(f"{PREFIX}model")
    if model == "gpt2":
        return _byte_level(metadata, vocabulary)
    if model == "llama":
        return _sentence_piece(metadata, vocabulary)
    raise UnsupportedModel(
        f"the tokenizer model {model!r} is not supported",
        why="supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)",
    )


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> BuiltTokenizer:
    warnings: tuple[str, ...] = ()
    name = metadata.get_text(f"{PREFIX}pre")
    if name is None:
        name = FALLBACK
        warnings = (f"the file has no {PREFIX}pre; text is split as by {FALLBACK!r}",)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} is not supported",
            why=f"supported are {', '.join(sorted(PRE_TOKENIZERS))}; with another one text "
            "would become other tokens than those the model was trained on",
        )
    entry = PRE_TOKENIZERS[name]
    merges = metadata.get_texts(f"{PREFIX}merges")
    if merges is None:
        raise missing(f"{PREFIX}merges")
    ids = vocabulary.ids()
    pairs = [_split_merge(merge, ids) for merge in merges]
    add_bos, add_eos = _added(metadata, vocabulary, entry.add_bos)
    document = _document(
        vocabulary,
        normalizer={"type": "NFC"} if entry.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": entry.steps()},
        post_processor=_post_processor(vocabulary, add_bos, add_eos, byte_level=True),
        decoder=_BYTE_LEVEL,
        model=_bpe(ids, pairs, unk=None, byte_fallback=False, ignore_merges=entry.ignore_merges),
    )
    return BuiltTokenizer(document, add_bos, add_eos, "PreTrainedTokenizerFast", warnings)


_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def _split_merge(merge: str, ids: dict[str, int]) -> list[str]:
    left, _, right = merge.partition(" ")
    for part in (left, right, left + right):
        if part not in ids:
            raise InvalidPackage(
                f"the merge {merge!r} of '{PREFIX}merges' is not usable",
                why=f"{part!r} is not a token",
            )
    return [left, right]


def _sentence_piece(metadata: Metadata, vocabulary: Vocabulary) -> BuiltTokenizer:
    scores = metadata.get_floats(f"{PREFIX}scores")
    if scores is None:
        raise missing(f"{PREFIX}scores")
    if len(scores) != len(vocabulary.tokens):
        raise InvalidPackage(
            f"'{PREFIX}scores' has {len(scores)} entries",
            why=f"there are {len(vocabulary.tokens)} tokens",
        )
    prefix = metadata.get_bool(f"{PREFIX}add_space_prefix")
    prefix = True if prefix is None else prefix
    ids = vocabulary.ids()
    unknown = vocabulary.roles.get("unk_token")
    if unknown is None:
        unknown = next(
            (i for i, kind in enumerate(vocabulary.types) if kind is TokenType.UNKNOWN), None
        )
    add_bos, add_eos = _added(metadata, vocabulary, True)
    byte_fallback = sum(kind is TokenType.BYTE for kind in vocabulary.types) == 256
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    document = _document(
        vocabulary,
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        post_processor=_post_processor(vocabulary, add_bos, add_eos, byte_level=False),
        decoder={"type": "Sequence", "decoders": decoders},
        model=_bpe(
            ids,
            merges_from_scores(vocabulary, scores),
            unk=None if unknown is None else vocabulary.tokens[unknown],
            byte_fallback=byte_fallback,
            ignore_merges=False,
        ),
    )
    return BuiltTokenizer(document, add_bos, add_eos, "PreTrainedTokenizerFast")


def merges_from_scores(vocabulary: Vocabulary, scores: list[float]) -> list[list[str]]:
    """Returns the merges that make BPE pick what SentencePiece picks: best score first.

    SentencePiece merges the adjacent pair whose union has the highest score. So every way to cut
    a token in two tokens is a merge, ranked by the token's score.
    """
    ids = {
        token: index
        for index, token in enumerate(vocabulary.tokens)
        if vocabulary.types[index] is TokenType.NORMAL
    }
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], index, left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [[left, right] for *_, left, right in ranked]


def _added(metadata: Metadata, vocabulary: Vocabulary, bos_default: bool) -> tuple[bool, bool]:
    """Returns whether encoding adds BOS and EOS."""
    bos = metadata.get_bool(f"{PREFIX}add_bos_token")
    eos = metadata.get_bool(f"{PREFIX}add_eos_token")
    return (
        (bos_default if bos is None else bos) and "bos_token" in vocabulary.roles,
        bool(eos) and "eos_token" in vocabulary.roles,
    )


def _post_processor(
    vocabulary: Vocabulary, add_bos: bool, add_eos: bool, *, byte_level: bool
) -> dict[str, Any] | None:
    if not (add_bos or add_eos):
        return _BYTE_LEVEL if byte_level else None
    bos, eos = (
        {"SpecialToken": {"id": vocabulary.tokens[vocabulary.roles[role]], "type_id": 0}}
        if used
        else None
        for role, used in (("bos_token", add_bos), ("eos_token", add_eos))
    )
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    used_ids = [vocabulary.roles["bos_token"]] if add_bos else []
    used_ids += [vocabulary.roles["eos_token"]] if add_eos else []
    return {
        "type": "TemplateProcessing",
        "single": [part for part in (bos, first, eos) if part],
        "pair": [part for part in (bos, first, eos, bos, second, eos) if part],
        "special_tokens": {
            vocabulary.tokens[index]: {
                "id": vocabulary.tokens[index],
                "ids": [index],
                "tokens": [vocabulary.tokens[index]],
            }
            for index in used_ids
        },
    }


def _bpe(
    ids: dict[str, int],
    merges: list[list[str]],
    *,
    unk: str | None,
    byte_fallback: bool,
    ignore_merges: bool,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": ids,
        "merges": merges,
    }


def _document(vocabulary: Vocabulary, **parts: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        **parts,
    }
