"""A conversation to the tokens of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from tokenmill.text.chat_template import ChatTemplate
from tokenmill.text.control import Protected, protect_content
from tokenmill.text.messages import check_messages, check_objects, plain
from tokenmill.text.spans import Span
from tokenmill.text.tokenizer import Tokenizer


class ChatOptions(TypedDict, total=False):
    """What `ChatTemplate.render` takes beside the messages, with its defaults."""

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    variables: Mapping[str, Any] | None
    clock: Callable[[], datetime]


def chat_spans(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    allow_control_tokens: bool = False,
    **options: Unpack[ChatOptions],
) -> list[Span]:
    """Renders a conversation and tells its control tokens from its text.

    The texts of the spans, joined, are the prompt as the template writes it.

    Args:
        tokenizer: says what the control tokens are.
        template: the chat template.
        messages: see `check_messages`.
        allow_control_tokens: control tokens in the content count as such. By default they are
            text, except in the assistant's messages.
        **options: see `ChatTemplate.render`.

    Raises:
        InvalidRequest: malformed messages, tools, documents or variables.
        TemplateError: see `ChatTemplate.render`.
    """
    chat = check_messages(messages)
    tools = check_objects("tools", options.get("tools"))
    documents = check_objects("documents", options.get("documents"))
    protected = Protected(chat, tools, documents, {})
    if not allow_control_tokens:
        protected = protect_content(
            chat,
            tools,
            documents,
            control_tokens=tokenizer.control_tokens,
            reserved=[
                template.source,
                *template.special_tokens.values(),
                *tokenizer.control_tokens,
                plain(options.get("variables")),
            ],
        )
    options["tools"], options["documents"] = protected.tools, protected.documents
    rendered = template.render(protected.messages, **options)
    return protected.split(rendered.text, tokenizer.control_tokens)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    allow_control_tokens: bool = False,
    **options: Unpack[ChatOptions],
) -> list[int]:
    """Renders and encodes a conversation, with one BOS where the package or the template wants it.

    Args:
        tokenizer: of the model.
        template: the chat template.
        messages: see `check_messages`.
        allow_control_tokens: see `chat_spans`.
        **options: see `ChatTemplate.render`.

    Raises:
        InvalidRequest: malformed messages, or text that this vocabulary cannot spell.
        TemplateError: see `ChatTemplate.render`.
    """
    spans = chat_spans(
        tokenizer, template, messages, allow_control_tokens=allow_control_tokens, **options
    )
    return tokenizer.encode_prompt(spans)
