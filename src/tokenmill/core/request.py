"""A request for generation: plain data, complete, the same from every door."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.ids import AdapterId, RequestId
from tokenmill.core.sampling_params import SamplingParams

Message = Mapping[str, Any]
"""A chat message: {"role": ..., "content": ...} and what the template understands beside."""

LogitsProcessor = Callable[[Sequence[int], NDArray[np.float32]], NDArray[np.float32]]
"""Called with all token ids so far, prompt included, and a copy of the logits [vocab_size]; returns
the row to go on with: float32 [vocab_size], -inf for what must not be drawn.

Called once for each token that is drawn, on the thread that computes for all requests: they wait
for it, and it must not wait for the model that it is called by."""

CustomSampler = Callable[[Sequence[int], NDArray[np.float32]], int]
"""Called as a `LogitsProcessor` is; returns the next token's id."""

_numbers = itertools.count(1)


def new_request_id() -> RequestId:
    """Returns an id that is unique within the machine's running processes."""
    return RequestId(f"req-{os.getpid():x}-{next(_numbers):x}")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be rendered by the package's chat template.

    Attributes:
        messages: the turns, oldest first.
        tools: function definitions in OpenAI's shape.
        documents: for templates that take them.
        template: the name of a named template; None takes the default one.
        variables: further template variables.
        add_generation_prompt: end with the opening of the assistant's turn.
        continue_final_message: leave the last message open instead of adding a turn.
        allow_control_tokens: let special tokens inside the messages act as such.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    allow_control_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """When to stop before the limits.

    Attributes:
        texts: stop where one of these appears; it and what follows is not shown.
        token_ids: stop at one of these.
        include: show the stop text after all.
        ignore_eos: go on after an end-of-text token.
    """

    texts: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    include: bool = False
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a request may go.

    Attributes:
        max_tokens: most completion tokens; None means up to the model's context.
        timeout: seconds after which what there is, is returned; None means no limit.
    """

    max_tokens: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What somebody wants generated.

    Attributes:
        prompt: text, token ids (taken as they are), or a conversation.
        sampling: how tokens are chosen.
        stop: when to stop.
        limits: how far to go.
        media: pictures and sounds that the prompt refers to.
        constraint: a grammar that the reply must keep to.
        priority: higher goes first.
        client: whose fair share it takes, e.g. an API key.
        logits_processors: applied in order, before everything that `sampling` says.
        sampler: picks the token in place of `sampling`.
        session: the session that the request continues.
        adapter: a parameter adapter to apply.
        cache_salt: requests share cached prefixes only within one salt.
        id: unique; made when not given.

    Raises:
        InvalidRequest: `logits_processors` or `sampler` cannot be called.
    """

    prompt: str | Sequence[int] | Chat
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Stop = field(default_factory=Stop)
    limits: Limits = field(default_factory=Limits)
    media: Sequence[object] = ()
    constraint: object | None = None
    priority: int = 0
    client: str = ""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    sampler: CustomSampler | None = None
    session: str | None = None
    adapter: AdapterId | None = None
    cache_salt: str = ""
    id: RequestId = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        processors = self.logits_processors
        if not isinstance(processors, tuple) or not all(callable(p) for p in processors):
            raise InvalidRequest(
                f"logits_processors is {processors!r}", why="it must be a list of callables"
            )
        if self.sampler is not None and not callable(self.sampler):
            raise InvalidRequest(f"sampler is {self.sampler!r}", why="it must be callable")
