"""Tokens become text; a token may be the last one. Pure, one instance a request and choice."""

from __future__ import annotations

from typing import NamedTuple

from tokenmill.core.events import FinishReason, Usage
from tokenmill.engine.prepare import PreparedRequest
from tokenmill.text.detokenizer import Detokenizer
from tokenmill.text.stop_text import StopMatcher
from tokenmill.text.text_output import TextOutput


class Emission(NamedTuple):
    """What one generated token adds to the output.

    Attributes:
        text: complete characters that cannot belong to a stop text any more; may be empty.
        token_ids: the token, unless it is an end-of-text token.
        reason: why this was the last token, or None.
    """

    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason | None


class Output:
    """The output of one request: detokenizer, stop texts, limits and counts.

    Args:
        prepared: the request.
        detokenizer: fresh; None where the package has no tokenizer: then there is no text.
    """

    def __init__(self, prepared: PreparedRequest, detokenizer: Detokenizer | None) -> None:
        stop = prepared.request.stop
        self._prepared = prepared
        self._text: TextOutput | None = None
        if detokenizer is not None:
            self._text = TextOutput(detokenizer, StopMatcher(stop.texts, include_stop=stop.include))
        self._shows_stop_ids = stop.include
        self.num_tokens = 0

    @property
    def usage(self) -> Usage:
        """Token counts up to now."""
        return Usage(len(self._prepared.prompt_ids), self.num_tokens)

    def push(self, token: int) -> Emission:
        """Takes the next generated token."""
        self.num_tokens += 1
        if token in self._prepared.end_ids:
            return Emission(self.flush(), (), FinishReason.EOS)
        is_stop_id = token in self._prepared.stop_ids
        text, stopped = "", None
        if self._text is not None and (self._shows_stop_ids or not is_stop_id):
            text, stopped = self._text.push(token)
        if stopped is not None:
            return Emission(text, (token,), FinishReason.STOP)
        if is_stop_id:
            return Emission(text + self.flush(), (token,), FinishReason.STOP)
        if self.num_tokens < self._prepared.max_tokens:
            return Emission(text, (token,), None)
        return Emission(text + self.flush(), (token,), self._prepared.limited_by)

    def flush(self) -> str:
        """Returns what was held back; the output has ended."""
        return self._text.finish().text if self._text is not None else ""
