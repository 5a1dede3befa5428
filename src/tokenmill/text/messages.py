"""Conversations as templates take them: checked, and made of plain data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tokenmill.core.errors import InvalidRequest

Message = dict[str, Any]
"""A message: "role", "content" (a text, a list of parts, or absent), and further fields."""


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns the messages as plain data that shares nothing with the caller's.

    Fields that are None are left out, since templates would print the word "None".

    Args:
        messages: each has "role", a text, and "content": a text, a list of parts
            ({"type": "text", "text": ...} or another type), or for the assistant None.

    Raises:
        InvalidRequest: a message that is not of this shape; names its index and field.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        _refuse("messages", "is not a list")
    if not messages:
        raise InvalidRequest("messages is empty", fix="Send at least one message")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check_message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        _refuse(where, "is not an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _refuse(f"{where}.role", "is not a text" if "role" in message else "is missing")
    content = message.get("content")
    if content is None:
        if role != "assistant":
            _refuse(
                f"{where}.content", f"is missing, which only the assistant's may be, not {role}'s"
            )
    elif isinstance(content, list | tuple):
        for index, part in enumerate(content):
            _check_part(part, f"{where}.content[{index}]")
    elif not isinstance(content, str):
        _refuse(f"{where}.content", "is neither a text nor a list of parts")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list | tuple):
            _refuse(f"{where}.tool_calls", "is not a list")
        for index, call in enumerate(calls):
            if not isinstance(call, Mapping):
                _refuse(f"{where}.tool_calls[{index}]", "is not an object")
    for field in ("name", "tool_call_id"):
        if not isinstance(message.get(field, ""), str | None):
            _refuse(f"{where}.{field}", "is not a text")
    return {str(key): plain(value) for key, value in message.items() if value is not None}


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, Mapping):
        _refuse(where, "is not an object")
    kind = part.get("type")
    if not isinstance(kind, str):
        _refuse(f"{where}.type", "is not a text" if "type" in part else "is missing")
    if kind == "text" and not isinstance(part.get("text"), str):
        _refuse(f"{where}.text", "is not a text" if "text" in part else "is missing")


def check_objects(name: str, values: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Returns a list of objects (tools, documents) as plain data; None stays None.

    Raises:
        InvalidRequest: it is no list, or an entry is no object; names its index.
    """
    if values is None:
        return None
    if not isinstance(values, list | tuple):
        _refuse(name, "is not a list")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            _refuse(f"{name}[{index}]", "is not an object")
    return [plain(value) for value in values]


def plain(value: object) -> Any:
    """Returns the value made of JSON's types alone, new at every level.

    Anything else becomes a text that names its type: objects have methods that a template, which
    may come from anywhere, must not reach.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return f"<{type(value).__name__}>"


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidRequest(
        f"{where} {why}",
        fix='A message is {"role": "user", "content": "..."}'
        if where.startswith("messages")
        else "Send a list of objects",
    )
