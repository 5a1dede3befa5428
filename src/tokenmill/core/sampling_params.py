"""How a token is chosen from logits: a request's sampling parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmill.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of the draw. Applied in the order in which they stand here.

    Attributes:
        temperature: logits are divided by it; 0 takes the best token (lowest id on a tie).
        top_k: keep the k best tokens; 0 keeps all.
        top_p: keep the smallest set of best tokens with at least this probability; 1 keeps all.
        min_p: keep tokens with at least this share of the best one's probability; 0 keeps all.
        seed: 64-bit; one seed gives one result, however the work is batched or cut. None draws
            one when the request is prepared.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.temperature, "temperature", 0.0, 100.0)
        _require(self.top_k, "top_k", 0, 2**31 - 1)
        _require(self.top_p, "top_p", 0.0, 1.0)
        _require(self.min_p, "min_p", 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest(
                "top_p is 0", why="no token has probability 0", fix="Use temperature=0 for the best"
            )
        if self.seed is not None:
            _require(self.seed, "seed", -(2**63), 2**64 - 1)

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken without a draw."""
        return self.temperature == 0.0 or self.top_k == 1


def _require(value: float, name: str, low: float, high: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} is {value!r}", why=f"it must be a number from {low} to {high}"
        )
    if isinstance(low, int) and not isinstance(value, int):
        raise InvalidRequest(f"{name} is {value!r}", why="it must be a whole number")
