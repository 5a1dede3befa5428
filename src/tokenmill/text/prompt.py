"""A conversation becomes token ids: protect, render, restore, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.text.chat_template import ChatTemplate
from tokenmill.text.control import protect, restore
from tokenmill.text.messages import Message, checked_messages
from tokenmill.text.tokenizer import Tokenizer


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    allow_control_tokens: bool = False,
) -> list[int]:
    """Returns the prompt's token ids, with one BOS where the model wants one.

    Args:
        allow_control_tokens: let control tokens in the messages act as such; by default only
            those that the template writes do.

    The others are those of `ChatTemplate.render`.

    Raises:
        InvalidRequest: a malformed message.
        TemplateError: the template fails or refuses the conversation.
    """
    turns: Sequence[Message] = checked_messages(messages)
    originals: Mapping[str, str] = {}
    if not allow_control_tokens:
        turns, originals = protect(turns, tokenizer.control_tokens)
    rendered = template.render(
        turns,
        tools=tools,
        documents=documents,
        variables=variables,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
    )
    return tokenizer.encode_prompt(restore(rendered, originals, tokenizer.control_tokens))
