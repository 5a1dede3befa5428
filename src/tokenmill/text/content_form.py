"""Whether a template takes a message's content as a text, as a list of parts, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tokenmill.core.errors import InvalidRequest
from tokenmill.text.messages import Message

_PROBE = "probe7f3a"


class ContentForm(Enum):
    """What a template can do with content."""

    ANY = "any"
    """Both forms, or unknown: content is passed as it is."""
    TEXT = "text"
    PARTS = "parts"


def probe_content_form(render: Callable[[object], str | None]) -> ContentForm:
    """Finds the form by trying.

    Args:
        render: renders a user message with that content, None where that fails.
    """
    as_text = render(_PROBE)
    as_parts = render([{"type": "text", "text": _PROBE}])
    takes_text = as_text is not None and _PROBE in as_text
    # A template that knows no parts prints the list itself.
    takes_parts = (
        as_parts is not None
        and _PROBE in as_parts
        and not any(f"{q}text{q}: {q}{_PROBE}" in as_parts for q in "'\"")
    )
    if takes_text == takes_parts:
        return ContentForm.ANY
    return ContentForm.TEXT if takes_text else ContentForm.PARTS


def adapt_content(messages: Sequence[Message], form: ContentForm) -> list[Message]:
    """Returns the messages with their content in a form that the template takes.

    Raises:
        InvalidRequest: a part that is not text meets a template that knows texts only.
    """
    if form is ContentForm.ANY:
        return list(messages)
    return [
        {**message, "content": _adapt(message["content"], form, f"messages[{index}].content")}
        if "content" in message
        else message
        for index, message in enumerate(messages)
    ]


def _adapt(content: Any, form: ContentForm, where: str) -> Any:
    if form is ContentForm.PARTS:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part["type"] != "text":
            raise InvalidRequest(
                f"{where}[{index}].type is {part['type']!r}",
                why="this model's chat template takes text only",
                fix="Send parts of type 'text'",
            )
    return "\n".join(part["text"] for part in content)
