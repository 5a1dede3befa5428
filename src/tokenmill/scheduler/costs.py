"""What a step takes, learnt from the steps that ran."""

from __future__ import annotations

import math

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


class StepCosts:
    """Predicts seconds of a step from its decoding rows and its prompt tokens.

    The two parts are computed apart, so their costs add up. Each is taken to be a line: a fixed
    part, which reads the weights, and a part for each row or token.
    """

    def __init__(self) -> None:
        self._decode = _Line()
        self._prefill = _Line()

    def observe(self, decode_rows: int, prefill_tokens: int, seconds: float) -> None:
        """Learns from a step that ran."""
        if prefill_tokens == 0 and decode_rows:
            self._decode.observe(decode_rows, seconds)
        elif prefill_tokens and not decode_rows:
            self._prefill.observe(prefill_tokens, seconds)
        elif prefill_tokens and (known := self.decode_seconds(decode_rows)) is not None:
            self._prefill.observe(prefill_tokens, max(0.0, seconds - known))

    def decode_seconds(self, rows: int) -> float | None:
        """Returns what a step of so many decoding rows takes; None while that is not known."""
        if self._decode.count < _LEAST_OBSERVATIONS:
            return None
        fixed, each = self._decode.fit()
        return fixed + each * rows

    def prefill_tokens_within(self, seconds: float) -> int | None:
        """Returns how many prompt tokens fit into the time; None while that is not known."""
        if self._prefill.count < _LEAST_OBSERVATIONS:
            return None
        fixed, each = self._prefill.fit()
        # What steps beside decoding rows cost can fade to next to nothing.
        tokens = (seconds - fixed) / each if each > 0 else math.inf
        return max(0, math.floor(tokens + 1e-6)) if math.isfinite(tokens) else None
