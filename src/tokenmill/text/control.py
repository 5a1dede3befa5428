"""Control tokens come from templates only: what looks like one in content stays text.

Before rendering, every place in the content where a control token begins has its first character
replaced by a private-use character that occurs nowhere else. The rendered text is then cut at the
control tokens that are left, which the template wrote, and the characters are put back. One
character for one keeps lengths, slices and trimming as they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tokenmill.core.errors import InvalidRequest
from tokenmill.text.messages import Message
from tokenmill.text.spans import Span, split_at_control_tokens

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Protected(NamedTuple):
    """Content in which no control token is left.

    Attributes:
        messages, tools, documents: as given, with characters replaced.
        originals: private-use character to the character that it stands for.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, Any]] | None
    originals: Mapping[str, str]

    def split(self, rendered: str, control_tokens: Iterable[str]) -> list[Span]:
        """Cuts a rendered text at the template's control tokens and puts the content back."""
        spans = split_at_control_tokens(rendered, control_tokens)
        if not self.originals:
            return spans
        return [Span(self.restore(span.text), span.is_control) for span in spans]

    def restore(self, text: str) -> str:
        """Puts the replaced characters back, also where JSON has escaped them."""
        for private, original in self.originals.items():
            text = text.replace(private, original)
            text = text.replace(json.dumps(private)[1:-1], json.dumps(original)[1:-1])
        return text


def protect_content(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    documents: Sequence[Mapping[str, Any]] | None,
    *,
    control_tokens: frozenset[str],
    reserved: Sequence[object] = (),
) -> Protected:
    """Replaces what looks like control tokens in all but the assistant's messages.

    In content, also what could become one where the template joins it to other text: an end that a
    control token begins with, a beginning that one ends with, and a content inside of one. Letter
    case is ignored, since templates may change it.

    Args:
        messages: plain data, as `check_messages` returns; not changed.
        tools: protected in all their values; the keys are the caller's.
        documents: likewise.
        control_tokens: their texts.
        reserved: further data with texts that are rendered (the template, its variables), whose
            characters are not used for the replacement.

    Raises:
        InvalidRequest: no private-use character is left, as the content holds them all.
    """
    replacer = _Replacer(control_tokens, lambda: _texts([messages, tools, documents, reserved]))
    return Protected(
        [
            message if message["role"] == "assistant" else replacer.in_message(message)
            for message in messages
        ],
        None if tools is None else [replacer.in_value(tool) for tool in tools],
        None if documents is None else [replacer.in_value(document) for document in documents],
        replacer.originals,
    )


class _Replacer:
    """Replaces characters, one private-use character for each different one."""

    def __init__(self, control_tokens: frozenset[str], texts: Callable[[], Iterable[str]]) -> None:
        self._shapes = _shapes_of(control_tokens)
        self._texts = texts
        self._free: Iterator[str] | None = None
        self._privates: dict[str, str] = {}
        self.originals: dict[str, str] = {}

    def in_message(self, message: Message) -> Message:
        protected: Message = {}
        for key, value in message.items():
            if key == "role":
                protected[key] = value
            elif key == "content":
                protected[key] = self._in_content(value)
            else:
                protected[key] = self.in_value(value)
        return protected

    def in_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._replace(value, self._shapes.starts(value))
        if isinstance(value, dict):
            return {key: self.in_value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.in_value(item) for item in value]
        return value

    def _in_content(self, content: Any) -> Any:
        if isinstance(content, str):
            return self._in_text(content)
        return [
            {
                key: self._in_text(value) if key == "text" else self.in_value(value)
                for key, value in part.items()
            }
            for part in content
        ]

    def _in_text(self, text: str) -> str:
        return self._replace(text, [*self._shapes.starts(text), *self._shapes.edges(text)])

    def _replace(self, text: str, indices: Sequence[int]) -> str:
        if not indices:
            return text
        characters = list(text)
        for index in set(indices):
            characters[index] = self._private(characters[index])
        return "".join(characters)

    def _private(self, original: str) -> str:
        if original not in self._privates:
            if self._free is None:
                self._free = _unused(self._texts())
            private = next(self._free, None)
            if private is None:
                raise InvalidRequest(
                    "the conversation holds every private-use character",
                    why="one is needed to tell its text from control tokens",
                    fix="Leave one of them out",
                )
            self._privates[original] = private
            self.originals[private] = original
        return self._privates[original]


class _Shapes:
    """What control tokens and their parts look like, in lower case."""

    def __init__(self, tokens: frozenset[str]) -> None:
        ordered = sorted((token for token in tokens if token), key=lambda t: (-len(t), t))
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)", re.IGNORECASE)
        self._tokens = [token.lower() for token in ordered]
        self._longest = max(map(len, self._tokens), default=0)
        self._heads = {token[:n] for token in self._tokens for n in range(1, len(token))}
        self._tails = {token[n:] for token in self._tokens for n in range(1, len(token))}

    def starts(self, text: str) -> list[int]:
        """Where control tokens begin, overlapping ones too."""
        found: list[int] = []
        match = self._pattern.search(text)
        while match is not None:
            found.append(match.start())
            match = self._pattern.search(text, match.start() + 1)
        return found

    def edges(self, text: str) -> list[int]:
        """Where the parts begin that could become control tokens with a neighbour's text."""
        # White space stays: templates trim it, and private-use characters are not trimmed.
        found = [
            len(text) - n
            for n in range(1, min(len(text), self._longest) + 1)
            if text[-n:].lower() in self._heads and not text[-n].isspace()
        ]
        if text and not text[0].isspace():
            lower = text[: self._longest].lower()
            if any(lower[:n] in self._tails for n in range(1, len(lower) + 1)) or (
                len(text) < self._longest and any(text.lower() in token for token in self._tokens)
            ):
                found.append(0)
        return found


@lru_cache(maxsize=64)
def _shapes_of(tokens: frozenset[str]) -> _Shapes:
    return _Shapes(tokens)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _unused(texts: Iterable[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts, as such or escaped by JSON."""
    joined = "\0".join(texts)
    used = set(joined)
    escaped = joined.lower() if "\\u" in joined.lower() else ""
    for codes in _PRIVATE_USE:
        for private in map(chr, codes):
            if private not in used and json.dumps(private)[1:-1] not in escaped:
                yield private
