"""Control tokens come from templates only, never from what people say.

Before rendering, special tokens inside the content of user, system and tool messages are replaced
by private-use characters; after the rendered text was cut at its real control tokens they are put
back, as ordinary text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenmill.text.spans import Span, control_pattern, split_at_control_tokens

_FIRST_PRIVATE = 0xF0000
_LAST_PRIVATE = 0xFFFFD


class Protected(NamedTuple):
    """Messages without control tokens in their content.

    Attributes:
        messages: copies, safe to render.
        originals: private-use character to the control token it stands for.
    """

    messages: list[dict[str, Any]]
    originals: Mapping[str, str]


def protect(messages: Sequence[Mapping[str, Any]], control_tokens: frozenset[str]) -> Protected:
    """Replaces control tokens in the content of all messages but the assistant's."""
    pattern = control_pattern(control_tokens)
    taken = {c for text in _texts(messages) for c in text if ord(c) >= _FIRST_PRIVATE}
    free = (chr(c) for c in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1) if chr(c) not in taken)
    stand_ins: dict[str, str] = {}

    def hide(text: str) -> str:
        def stand_in(token: str) -> str:
            if token not in stand_ins:
                stand_ins[token] = next(free)
            return stand_ins[token]

        return pattern.sub(lambda match: stand_in(match[0]), text)

    hidden = [
        dict(message) if message.get("role") == "assistant" else _map_texts(message, hide)
        for message in messages
    ]
    return Protected(hidden, {character: token for token, character in stand_ins.items()})


def restore(
    rendered: str, originals: Mapping[str, str], control_tokens: frozenset[str]
) -> list[Span]:
    """Cuts a rendered text at its real control tokens and puts the replaced ones back as text."""
    back = str.maketrans(dict(originals))
    return [
        span if span.is_control else Span(span.text.translate(back), False)
        for span in split_at_control_tokens(rendered, control_tokens)
    ]


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield from (value for value in message.values() if isinstance(value, str))
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            yield from (part["text"] for part in content if isinstance(part.get("text"), str))


def _map_texts(message: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    changed = {
        name: change(value) if isinstance(value, str) and name != "role" else value
        for name, value in message.items()
    }
    content = changed.get("content")
    if content is not None and not isinstance(content, str):
        changed["content"] = [
            {**part, "text": change(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    return changed
