"""What a step takes, learnt from the steps that ran."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.scheduler.prefill_costs import Chunk, PrefillCosts

_MEMORY = 0.9
"""Weight of all earlier observations when a new one arrives; half is forgotten after seven."""
_LEAST_OBSERVATIONS = 2


class _Line:
    """The line seconds = fixed + each * size through recent observations, least squares."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.count = 0

    def observe(self, size: float, seconds: float) -> None:
        """Adds a point."""
        keep = _MEMORY
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + size
        self._y = keep * self._y + seconds
        self._xx = keep * self._xx + size * size
        self._xy = keep * self._xy + size * seconds
        self.count += 1

    def fit(self) -> tuple[float, float]:
        """Returns (fixed, each), both at least 0."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread <= 1e-9 * max(1.0, mean_x * mean_x):
            # All of one size: the cost is taken to grow in proportion.
            return 0.0, mean_y / mean_x
        each = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread)
        fixed = mean_y - each * mean_x
        if fixed < 0:
            return 0.0, mean_y / mean_x
        return fixed, each


_UNMEASURED_COPY = 1e9
"""Bytes a second that copies are taken to make before one was measured; a modest machine's."""


class StepCosts:
    """Predicts seconds of a step from its decoding rows and its chunks of prompts.

    The two parts are computed apart, so their costs add up.
    """

    def __init__(self) -> None:
        self._decode = _Line()
        self._prefill = PrefillCosts()
        self._copied = self._copy_seconds = 0.0

    def observe(self, decode_rows: int, chunks: Sequence[Chunk], seconds: float) -> None:
        """Learns from a step that ran."""
        if not chunks:
            self._decode.observe(decode_rows, seconds)
        elif not decode_rows:
            self._prefill.observe(chunks, seconds)
        elif (known := self.decode_seconds(decode_rows)) is not None:
            self._prefill.observe(chunks, max(0.0, seconds - known))

    def decode_seconds(self, rows: int) -> float | None:
        """Returns what a step of so many decoding rows takes; None while that is not known."""
        if self._decode.count < _LEAST_OBSERVATIONS:
            return None
        fixed, each = self._decode.fit()
        return fixed + each * rows

    def prefill_tokens_within(self, seconds: float, past: int, limit: int) -> int | None:
        """Returns how many tokens of a prompt fit into the time; None while that is not known.

        Args:
            seconds: for them alone.
            past: tokens of the prompt that were computed before.
            limit: never more than these.
        """
        if not self._prefill.is_known:
            return None
        return self._prefill.tokens_within(seconds, past, limit)

    def observe_copy(self, size: int, seconds: float) -> None:
        """Learns from a copy of so many bytes of state, out of the backend or into it."""
        self._copied = _MEMORY * self._copied + size
        self._copy_seconds = _MEMORY * self._copy_seconds + seconds

    def swap_seconds(self, size: int) -> float:
        """Returns what copying so many bytes of state out and in again takes."""
        known = self._copy_seconds > 0
        rate = self._copied / self._copy_seconds if known else _UNMEASURED_COPY
        return 2 * size / rate

    def replay_seconds(
        self, prompt_tokens: int, reply_tokens: int, *, in_chunks: bool
    ) -> float | None:
        """Returns what computing state again takes; None while that is not known.

        Args:
            prompt_tokens: of the prompt.
            reply_tokens: generated ones.
            in_chunks: the generated ones go several at a time; else one by one, beside others,
                so that they take what a row more takes.
        """
        if in_chunks:
            prompt_tokens, reply_tokens = prompt_tokens + reply_tokens, 0
        seconds = 0.0
        if prompt_tokens:
            if not self._prefill.is_known:
                return None
            seconds += self._prefill.seconds([Chunk(prompt_tokens, 0)])
        if reply_tokens:
            if self._decode.count < _LEAST_OBSERVATIONS:
                return None
            seconds += self._decode.fit()[1] * reply_tokens
        return seconds
