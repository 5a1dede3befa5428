"""Tokens become text; a token may be the last one. Pure, one instance a request and choice."""

from __future__ import annotations

from typing import NamedTuple

from tokenmill.core.events import FinishReason, Usage
from tokenmill.engine.prepare import PreparedRequest
from tokenmill.text.detokenizer import Detokenizer
from tokenmill.text.stop_text import StopMatcher


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
        self._detokenizer = detokenizer
        self._stop_matcher = StopMatcher(stop.texts, include_stop=stop.include)
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
        shown = (token,)
        if token in self._prepared.stop_ids:
            text = self._decode(token) if self._shows_stop_ids else ""
            return Emission(self._match(text)[0] + self.flush(), shown, FinishReason.STOP)
        text, stopped = self._match(self._decode(token))
        if stopped:
            return Emission(text, shown, FinishReason.STOP)
        if self.num_tokens < self._prepared.max_tokens:
            return Emission(text, shown, None)
        return Emission(text + self.flush(), shown, self._prepared.limited_by)

    def flush(self) -> str:
        """Returns what was held back; the output has ended."""
        rest = self._detokenizer.flush() if self._detokenizer else ""
        text, stopped = self._match(rest)
        return text if stopped else text + self._stop_matcher.flush()

    def _decode(self, token: int) -> str:
        return self._detokenizer.push(token) if self._detokenizer else ""

    def _match(self, text: str) -> tuple[str, bool]:
        outcome = self._stop_matcher.push(text)
        return outcome.text, outcome.stopped is not None
