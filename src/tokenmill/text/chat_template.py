"""Chat templates: a conversation to the text that the model was trained to continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenmill.core.errors import InvalidRequest, TemplateError
from tokenmill.text.content_form import ContentForm, adapt_content, probe_content_form
from tokenmill.text.messages import Message, check_messages, check_objects, plain
from tokenmill.text.template_environment import Refusal, template_environment

if TYPE_CHECKING:
    from jinja2 import Template

MAX_RENDERED = 16 * 1024 * 1024
"""Most characters that a template may write: far beyond any context."""

_TAG = "ContinueHere7f3a "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class Rendered(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: the prompt, with its control tokens written out.
        template: the template's name.
    """

    text: str
    template: str


class ChatTemplate:
    """A Jinja chat template. It compiles when it is first used.

    Args:
        source: the template.
        special_tokens: variables such as "bos_token" with their text.
        name: for messages.
    """

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], name: str = "default"
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.name = name

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> Rendered:
        """Renders a conversation as `transformers` does.

        One thing is kinder: a template that knows texts only gets the texts of a list of parts,
        joined by line feeds, and one that knows parts only gets a text as one part.

        Args:
            messages: see `check_messages`.
            tools: JSON schemas of functions.
            documents: objects, usually with "title" and "text".
            add_generation_prompt: end with the header of the assistant's reply.
            continue_final_message: end inside the last message, for the model to go on with it;
                then no generation prompt is added.
            variables: further variables, which win over the special tokens.
            clock: what `strftime_now` reads.

        Raises:
            InvalidRequest: malformed messages, tools, documents or variables.
            TemplateError: the template does not compile, fails, refuses the conversation, writes
                too much, or does something that the sandbox forbids.
        """
        chat = [_alias_reasoning(message) for message in check_messages(messages)]
        chat = adapt_content(chat, self._content_form)
        extra = plain({} if variables is None else variables)
        if not isinstance(extra, dict):
            raise InvalidRequest(
                "the template variables are not an object", fix="Send names and values"
            )
        if taken := _OWN_VARIABLES & extra.keys():
            raise InvalidRequest(
                f"the template variable {min(taken)!r} cannot be set", fix="It has its own argument"
            )
        last = _tag_last(chat[-1]) if continue_final_message else None
        text = self._run(
            {
                "strftime_now": lambda form: clock().strftime(form),
                **self.special_tokens,
                **extra,
                "messages": chat,
                "tools": check_objects("tools", tools),
                "documents": check_objects("documents", documents),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        if last is not None:
            text = self._cut_at_tag(text, last)
        return Rendered(text, self.name)

    @cached_property
    def _compiled(self) -> Template:
        from jinja2.exceptions import TemplateSyntaxError

        try:
            return template_environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template {self.name!r} does not compile",
                why=f"line {error.lineno}: {error.message}",
                fix="Correct the package's chat template, or give another",
            ) from error
        except (SyntaxError, RecursionError, OverflowError, ValueError) as error:
            # Jinja leaves some faults to Python's compiler: a `break` in a macro, deep nesting.
            raise TemplateError(
                f"the chat template {self.name!r} does not compile",
                why=str(error),
                fix="Correct the package's chat template, or give another",
            ) from error

    @cached_property
    def _content_form(self) -> ContentForm:
        return probe_content_form(self._probe)

    def _probe(self, content: object) -> str | None:
        try:
            return self._run(
                {
                    "strftime_now": lambda form: datetime(2026, 1, 2).strftime(form),
                    **self.special_tokens,
                    "messages": [{"role": "user", "content": content}],
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": False,
                }
            )
        except TemplateError:
            return None

    def _run(self, variables: Mapping[str, Any]) -> str:
        compiled = self._compiled
        parts: list[str] = []
        length = 0
        try:
            for part in compiled.generate(variables):
                parts.append(part)
                length += len(part)
                if length > MAX_RENDERED:
                    break
        except Refusal as refusal:
            raise TemplateError(
                "the chat template refuses this conversation",
                why=str(refusal),
                fix="Send messages of a form that the model knows",
            ) from refusal
        except Exception as error:
            # A template is a program, which can fail in any way that Python can.
            line = _line_of(error.__traceback__)
            raise TemplateError(
                f"the chat template {self.name!r} failed",
                why=f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}",
                fix="Check the messages, or correct the template",
            ) from error
        if length > MAX_RENDERED:
            raise TemplateError(
                f"the chat template {self.name!r} writes too much",
                why=f"more than {MAX_RENDERED} characters",
                fix="Send a shorter conversation, or correct the template",
            )
        return "".join(parts)

    def _cut_at_tag(self, text: str, last: str) -> str:
        start = text.rfind(_TAG.rstrip())
        if start < 0 or last.strip() not in text:
            raise TemplateError(
                "the final message cannot be continued",
                why=f"the chat template {self.name!r} does not show all of it",
                fix="Continue a message that ends with plain text, or do not continue it",
            )
        head = text[:start]
        # The tag ends with a space: where that is gone, the template trims its messages.
        return head if text.startswith(_TAG, start) else head.rstrip()


def _alias_reasoning(message: Message) -> Message:
    """Puts reasoning under the names that templates read it by, whatever name it came by."""
    for field in _REASONING_FIELDS:
        if field in message:
            reasoning = message[field]
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _tag_last(message: Message) -> str:
    """Marks the end of a message's text, in place, and returns the text before the mark."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _TAG
        return content
    for part in reversed(content or []):
        if "text" in part:
            text: str = part["text"]
            part["text"] = text + _TAG
            return text
    raise InvalidRequest(
        "the final message cannot be continued",
        why="it has no text",
        fix="Continue a message with a text",
    )


def _line_of(traceback: TracebackType | None) -> int | None:
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
