"""Chat messages as they come from callers: untrusted, so checked before anything reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Message

__all__ = ["Message", "checked_messages"]


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns the messages as fresh dictionaries.

    A message has a `role` and a `content`: text, a list of parts with a `type`, or nothing (for
    an assistant's turn that only calls tools). Other fields are the template's business.

    Raises:
        InvalidRequest: what is wrong, with the message's index and the field.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequest("messages is not a list", why="it must be a list of turns")
    if not messages:
        raise InvalidRequest("messages is empty", why="a conversation has at least one turn")
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked(message: Message, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{place} is {type(message).__name__}", why="it must be an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{place}.role is {role!r}", why="it must be a text such as 'user'")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        if not isinstance(content, Sequence) or isinstance(content, bytes):
            raise InvalidRequest(
                f"{place}.content is {type(content).__name__}",
                why="it must be text, a list of parts, or null",
            )
        for index, part in enumerate(content):
            _check_part(part, f"{place}.content[{index}]")
    return dict(message)


def _check_part(part: object, place: str) -> None:
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{place} is {type(part).__name__}", why="a part must be an object")
    if not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{place}.type is missing", why="e.g. 'text'")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{place}.text is missing", why="a text part has a text")
