"""Chat templates: Jinja in a sandbox, with the environment that such templates are written for.

The names, filters and extensions are those that Hugging Face transformers gives to
`apply_chat_template`: `raise_exception`, `strftime_now`, `tojson`, loop controls and the
`generation` tag; blocks trimmed and stripped on the left.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tokenmill.core.errors import TemplateError
from tokenmill.text.messages import Message, checked_messages

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MAX_CHARACTERS = 16_000_000
"""Longest text that a template may render."""

_END_MARK = "\U0010fffd"


class ChatTemplate:
    """A template of one package. Compiled when first rendered; may be used by several threads.

    Args:
        source: Jinja text.
        special_tokens: role ("bos_token", ...) to text; variables of the template.
        name: for messages, e.g. "default" or "tool_use".
    """

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], name: str = "default"
    ) -> None:
        self.source = source
        self.name = name
        self._special_tokens = dict(special_tokens)
        self._lock = threading.Lock()
        self._compiled: Template | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: the turns, oldest first.
            tools: function definitions in OpenAI's shape; None where there are none.
            documents: for templates that take them.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: end inside the last message, which the model goes on with;
                no turn is opened then.
            variables: further template variables; they win over special tokens.
            clock: what `strftime_now` tells.

        Raises:
            InvalidRequest: a message is malformed; its index and field are named.
            TemplateError: the template does not compile, fails, or refuses the conversation in
                its own words.
        """
        turns = checked_messages(messages)
        if continue_final_message:
            turns = _mark_end(turns)
        context = {
            **self._special_tokens,
            "messages": turns,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "strftime_now": lambda format: clock().strftime(format),  # noqa: A006 - templates may name it
            **(variables or {}),
        }
        text = self._render(context)
        if not continue_final_message:
            return text
        before, found, _ = text.rpartition(_END_MARK)
        if not found:
            raise TemplateError(
                f"the chat template {self.name!r} does not show the final message",
                why="it leaves out the end of its content, so there is nothing to continue",
                fix="Ask without continue_final_message",
            )
        return before

    def _render(self, context: Mapping[str, Any]) -> str:
        template = self._compile()
        pieces: list[str] = []
        size = 0
        try:
            for piece in template.generate(context):
                size += len(piece)
                if size > MAX_CHARACTERS:
                    raise TemplateError(
                        f"the chat template {self.name!r} renders too much",
                        why=f"the limit is {MAX_CHARACTERS} characters",
                    )
                pieces.append(piece)
        except TemplateError:
            raise
        except _RefusalError as refusal:
            raise TemplateError(
                "the chat template refuses this conversation",
                why=str(refusal),
                fix="Change the messages as the template wants them",
            ) from None
        except Exception as error:  # a template can raise whatever Python can
            raise TemplateError(
                f"the chat template {self.name!r} fails{_line_of(error)}",
                why=f"{type(error).__name__}: {error}",
            ) from error
        return "".join(pieces)

    def _compile(self) -> Template:
        from jinja2 import TemplateSyntaxError

        with self._lock:
            if self._compiled is None:
                try:
                    self._compiled = _environment().from_string(self.source)
                except TemplateSyntaxError as error:
                    raise TemplateError(
                        f"the chat template {self.name!r} does not compile",
                        why=f"line {error.lineno}: {error.message}",
                        fix="Correct the template in the package",
                    ) from None
            return self._compiled


class _RefusalError(Exception):
    """What `raise_exception` raises inside a template."""


def _environment() -> Environment:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's tokens for training; here it only shows them."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: object) -> None:
    raise _RefusalError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; templates for models want plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _mark_end(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages or messages[-1].get("content") is None:
        raise TemplateError(
            "there is no final message to continue", why="the last message has no content"
        )
    last = dict(messages[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + _END_MARK
    else:
        parts = [dict(part) for part in content]
        texts = [part for part in parts if isinstance(part.get("text"), str)]
        if not texts:
            raise TemplateError("there is no final message to continue", why="it has no text part")
        texts[-1]["text"] += _END_MARK
        last["content"] = parts
    return [*messages[:-1], last]


def _line_of(error: BaseException) -> str:
    """Returns " at line N" where the error came through the template's own code."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
