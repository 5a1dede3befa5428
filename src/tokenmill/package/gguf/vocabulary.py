"""The vocabulary of a GGUF file: tokens with their types, and the ids with a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.gguf.metadata import Metadata, missing

PREFIX = "tokenizer.ggml."
# A file names one or two ids that end a text; chat models have more. llama.cpp ends generation at
# control tokens with these texts too, and so do the models' own generation defaults.
_END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<EOT>",
        "_<EOT>",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class TokenType(IntEnum):
    """ggml's types of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id.

    Attributes:
        tokens: text as in the file (byte-level BPE keeps its byte alphabet).
        types: of each token.
        roles: "bos_token", "eos_token", "unk_token", "pad_token" to an id, where there is one.
        end_ids: every id that ends a text, the file's `eos_token_id` first.
    """

    tokens: Sequence[str]
    types: Sequence[TokenType]
    roles: Mapping[str, int]
    end_ids: Sequence[int]

    def added_tokens(self) -> list[dict[str, object]]:
        """Returns the `added_tokens` of `tokenizer.json`: those matched before splitting."""
        special = (TokenType.CONTROL, TokenType.UNKNOWN)
        return [
            {
                "id": index,
                "content": self.tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind in special,
            }
            for index, kind in enumerate(self.types)
            if (kind in special or kind is TokenType.USER_DEFINED) and self.tokens[index]
        ]

    def ids(self) -> dict[str, int]:
        """Returns token text to id; of equal texts the first keeps it."""
        found: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            found.setdefault(token, index)
        return found


def read_vocabulary(metadata: Metadata, vocab_size: int) -> Vocabulary:
    """Reads the vocabulary.

    Args:
        metadata: of the file.
        vocab_size: rows of the embedding, which no id may reach.

    Raises:
        InvalidPackage: tokens are missing, or an id is outside the vocabulary.
    """
    tokens = metadata.get_texts(f"{PREFIX}tokens")
    if not tokens:
        raise missing(f"{PREFIX}tokens")
    if len(tokens) > vocab_size:
        raise InvalidPackage(
            f"'{PREFIX}tokens' has {len(tokens)} entries",
            why=f"the embedding has only {vocab_size} rows",
        )
    numbers = metadata.get_ints(f"{PREFIX}token_type") or [TokenType.NORMAL] * len(tokens)
    if len(numbers) != len(tokens):
        raise InvalidPackage(
            f"'{PREFIX}token_type' has {len(numbers)} entries",
            why=f"there are {len(tokens)} tokens",
        )
    try:
        types = [TokenType(number or TokenType.NORMAL) for number in numbers]
    except ValueError as error:
        raise InvalidPackage(f"'{PREFIX}token_type' has a bad entry", why=str(error)) from error
    roles = {role: _token_id(metadata, key, len(tokens)) for role, key in _ROLE_KEYS.items()}
    ends = [_token_id(metadata, key, len(tokens)) for key in _END_KEYS]
    ends += [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind is TokenType.CONTROL and token in _END_TEXTS
    ]
    return Vocabulary(
        tokens,
        types,
        {role: index for role, index in roles.items() if index is not None},
        list(dict.fromkeys(index for index in ends if index is not None)),
    )


def _token_id(metadata: Metadata, key: str, limit: int) -> int | None:
    value = metadata.get_int(PREFIX + key)
    # Files that have no such token say so with -1, or with its unsigned form.
    if value is None or value in (-1, 0xFFFFFFFF):
        return None
    if not 0 <= value < limit:
        raise InvalidPackage(f"'{PREFIX}{key}' is {value}", why=f"there are {limit} tokens")
    return value
