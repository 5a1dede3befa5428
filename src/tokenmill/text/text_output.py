"""From an output's tokens to the text that is shown: detokenizer and stop texts together."""

from __future__ import annotations

from tokenmill.text.detokenizer import Detokenizer
from tokenmill.text.stop_text import StopMatcher, StopOutcome


class TextOutput:
    """The text of one output, token by token.

    A stop text counts as soon as the tokens spell it, also where a decoder still holds the
    characters back because later bytes could change them (a line feed written as a byte token):
    the output ends with the token that completes the stop text. Of that token, the text before
    the stop text is shown.

    Args:
        detokenizer: a fresh one.
        matcher: a fresh one.
    """

    def __init__(self, detokenizer: Detokenizer, matcher: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher

    def push(self, token_id: int) -> StopOutcome:
        """Takes the next token and says what to show, and whether the output ends here."""
        outcome = self._matcher.push(self._detokenizer.push(token_id))
        if outcome.stopped is not None:
            return outcome
        waiting = self._detokenizer.peek().rstrip("\ufffd")
        if waiting and self._matcher.would_stop(waiting):
            ended = self._matcher.push(self._detokenizer.flush())
            return StopOutcome(outcome.text + ended.text, ended.stopped)
        return outcome

    def finish(self) -> StopOutcome:
        """Ends an output that no stop text ended, and returns the text that was held back."""
        outcome = self._matcher.push(self._detokenizer.flush())
        return StopOutcome(outcome.text + self._matcher.flush(), outcome.stopped)
