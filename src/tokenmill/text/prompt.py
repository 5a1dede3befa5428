"""A conversation to the tokens of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tokenmill.text.chat_template import ChatTemplate
from tokenmill.text.control import Protected, protect_content
from tokenmill.text.messages import check_messages, check_objects, plain
from tokenmill.text.spans import Span
from tokenmill.text.tokenizer import Tokenizer


def chat_spans(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
    clock: Callable[[], datetime] = datetime.now,
    allow_control_tokens: bool = False,
) -> list[Span]:
    """Renders a conversation and tells its control tokens from its text.

    The texts of the spans, joined, are the prompt as the template writes it.

    Args:
        tokenizer: says what the control tokens are.
        template: the chat template.
        messages, tools, documents, add_generation_prompt, continue_final_message, variables,
            clock: see `ChatTemplate.render`.
        allow_control_tokens: control tokens in the content count as such. By default they are
            text, except in the assistant's messages.

    Raises:
        InvalidRequest: malformed messages, tools, documents or variables.
        TemplateError: see `ChatTemplate.render`.
    """
    chat = check_messages(messages)
    tools, documents = check_objects("tools", tools), check_objects("documents", documents)
    if allow_control_tokens:
        protected = Protected(chat, tools, documents, {})
    else:
        reserved = [template.source, plain(variables), *tokenizer.control_tokens]
        protected = protect_content(
            chat,
            tools,
            documents,
            control_tokens=tokenizer.control_tokens,
            reserved=[*reserved, *template.special_tokens.values()],
        )
    rendered = template.render(
        protected.messages,
        tools=protected.tools,
        documents=protected.documents,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
        clock=clock,
    )
    return protected.split(rendered.text, tokenizer.control_tokens)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
    clock: Callable[[], datetime] = datetime.now,
    allow_control_tokens: bool = False,
) -> list[int]:
    """Renders and encodes a conversation, with one BOS where the package or the template wants it.

    Args:
        tokenizer, template, messages, tools, documents, add_generation_prompt,
            continue_final_message, variables, clock, allow_control_tokens: see `chat_spans`.

    Raises:
        InvalidRequest: malformed messages, or text that this vocabulary cannot spell.
        TemplateError: see `ChatTemplate.render`.
    """
    return tokenizer.encode_prompt(
        chat_spans(
            tokenizer,
            template,
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            clock=clock,
            allow_control_tokens=allow_control_tokens,
        )
    )
