"""Tokens to text while they arrive."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenmill.text.decoder_stages import Stage


class Detokenizer(Protocol):
    """Turns one output's tokens into text, piece by piece.

    The texts of all `push` calls and of `flush`, joined, are exactly what the tokenizer decodes
    from all the ids at once. A delta holds complete characters only, each exactly once; U+FFFD
    appears before the finish only where the whole decode has it too. One object serves one output
    and one thread.
    """

    def push(self, token_id: int) -> str:
        """Takes the next token and returns the text that is certain now; often empty."""

    def flush(self) -> str:
        """Returns what was held back; the output ends here. A second call returns ""."""

    def peek(self) -> str:
        """Returns what `flush` would, and changes nothing."""


class StreamingDetokenizer:
    """A detokenizer of stages, for every decoder whose links can work piece by piece.

    Args:
        piece_of: the piece of a token as its decoder sees it; None for a token that is not shown
            (unknown, or special and skipped). Called once per different token.
        stages: fresh stages, in order.
        pieces: a cache of `piece_of`, which may be shared by detokenizers.
    """

    def __init__(
        self,
        piece_of: Callable[[int], str | None],
        stages: Sequence[Stage],
        pieces: dict[int, str | None],
    ) -> None:
        self._piece_of = piece_of
        self._stages = list(stages)
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        try:
            piece = self._pieces[token_id]
        except KeyError:
            piece = self._pieces[token_id] = self._piece_of(token_id)
        if piece is None:
            return ""
        texts: Sequence[str] = (piece,)
        for stage in self._stages:
            if len(texts) == 1:
                texts = stage.push(texts[0])
            else:
                texts = [out for text in texts for out in stage.push(text)]
        return texts[0] if len(texts) == 1 else "".join(texts)

    def flush(self) -> str:
        """See `Detokenizer`."""
        return _flush(self._stages)

    def peek(self) -> str:
        """See `Detokenizer`."""
        if not any(stage.holding for stage in self._stages):
            return ""
        return _flush([copy.copy(stage) for stage in self._stages])


def _flush(stages: Sequence[Stage]) -> str:
    texts: list[str] = []
    for stage in stages:
        texts = [out for text in texts for out in stage.push(text)]
        texts += stage.flush()
    return "".join(texts)


class WholeDetokenizer:
    """A detokenizer for decoders that can only be applied to a whole output.

    It decodes all ids so far at each step and gives out the text that the last `lag` tokens left
    unchanged. So it costs time in proportion to the output's length, and it is exact for decoders
    that never change text more than `lag` tokens back.

    Args:
        decode: decodes a whole list of ids.
        lag: in tokens.
    """

    def __init__(self, decode: Callable[[list[int]], str], lag: int = 4) -> None:
        self._decode = decode
        self._lag = lag
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._sent = ""

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        self._ids.append(token_id)
        self._texts = [*self._texts[-self._lag :], self._decode(self._ids)]
        if len(self._texts) <= self._lag:
            return ""
        stable = _common_prefix(self._texts).rstrip("\ufffd")
        if not stable.startswith(self._sent):
            return ""
        delta, self._sent = stable[len(self._sent) :], stable
        return delta

    def flush(self) -> str:
        """See `Detokenizer`."""
        delta = self.peek()
        self._sent += delta
        return delta

    def peek(self) -> str:
        """See `Detokenizer`."""
        whole = self._texts[-1] if self._texts else ""
        return whole[len(_common_prefix([whole, self._sent])) :]


def _common_prefix(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    for index, character in enumerate(low):
        if character != high[index]:
            return low[:index]
    return low
