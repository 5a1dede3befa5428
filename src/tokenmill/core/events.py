"""What comes out of the engine: events while a request runs, and its result."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tokenmill.core.errors import TokenmillError
from tokenmill.core.ids import RequestId
from tokenmill.telemetry.timeline import Timeline


class FinishReason(Enum):
    """Why generation ended."""

    EOS = "eos"
    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTEXT = "context"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    ERROR = "error"

    @property
    def openai(self) -> str:
        """The value of OpenAI's `finish_reason`: stop, length, tool_calls or error."""
        return _OPENAI[self]


_OPENAI = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.CANCELLED: "length",
    FinishReason.ERROR: "error",
}


class Usage(NamedTuple):
    """What a request consumed.

    Attributes:
        prompt_tokens: tokens of the prompt, cached ones included.
        completion_tokens: generated tokens, an end-of-text token included.
        cached_tokens: prompt tokens whose state was not computed anew.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Finish(NamedTuple):
    """The end of a request.

    Attributes:
        reason: why it ended.
        usage: what it consumed.
        note: what a reader should know beside the reason, e.g. that a deadline cut it.
        error: the error, where the reason is ERROR.
    """

    reason: FinishReason
    usage: Usage
    note: str = ""
    error: TokenmillError | None = None


class GenerateEvent(NamedTuple):
    """A piece of output.

    Attributes:
        text: new text, complete characters only; texts of all events join to the result's.
        token_ids: the new tokens that count as output (no end-of-text token).
        choice: which of several outputs.
        finish: set on the last event, and only there.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    choice: int = 0
    finish: Finish | None = None


class GenerateResult(NamedTuple):
    """A finished request.

    Attributes:
        text: the whole output, stop text and end-of-text token left out.
        token_ids: the generated tokens without the end-of-text token.
        finish_reason: as OpenAI names it: "stop", "length" or "tool_calls".
        reason: the finer reason.
        usage: token counts.
        timeline: the stations it passed, with their times.
        request_id: the request's id.
        note: what a reader should know beside the reason.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    reason: FinishReason
    usage: Usage
    timeline: Timeline
    request_id: RequestId
    note: str = ""
