"""How a figure is distributed: counts in fixed buckets, with exact count, sum, least and most."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

SECONDS = (
    *(0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.0007),
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    *(10.0, 15.0, 20.0, 30.0, 60.0),
)
"""Bucket bounds for times. Latencies lie above 1 ms, our own part of a step below it."""

SIZES = (
    *(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096, 6144, 8192),
)
"""Bucket bounds for rows and tokens of a step."""


class Distribution(NamedTuple):
    """A histogram at one moment.

    Attributes:
        bounds: ascending; a bucket holds the values up to its bound, that one included, and above
            the bound before.
        counts: values in each bucket, and last those above all bounds.
        sum: of all values.
        minimum: the least value; None where there is none.
        maximum: the largest value; None where there is none.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    minimum: float | None
    maximum: float | None

    @property
    def total(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The exact mean; None where there is no value."""
        return self.sum / self.total if self.total else None

    def estimate(self, share: float) -> float | None:
        """Returns about the value that `share` of all values do not exceed.

        The values of a bucket are taken to lie evenly in it, so the estimate is off by less than
        the bucket's width. It is a whole number where the bounds are, and None where there is no
        value.

        Args:
            share: above 0, at most 1; 0.5 estimates the median.
        """
        if self.minimum is None or self.maximum is None:
            return None
        rank = share * self.total
        place, reached = next(
            (place, reached)
            for place, reached in enumerate(accumulate(self.counts))
            if reached >= rank
        )
        edges = (self.minimum, *self.bounds, self.maximum)
        low, high = max(edges[place], self.minimum), min(edges[place + 1], self.maximum)
        inside = self.counts[place]
        value = low + (high - low) * (rank - (reached - inside)) / inside
        return math.ceil(value) if isinstance(self.bounds[0], int) else value

    def as_dict(self) -> dict[str, object]:
        """Returns plain JSON data."""
        return {
            "count": self.total,
            "sum": self.sum,
            "mean": self.mean,
            "min": self.minimum,
            "max": self.maximum,
            "p50_estimate": self.estimate(0.5),
            "p90_estimate": self.estimate(0.9),
            "p99_estimate": self.estimate(0.99),
            "bounds": list(self.bounds),
            "counts": list(self.counts),
        }


class Histogram:
    """Counts values into buckets. Not thread-safe.

    Args:
        bounds: see `Distribution.bounds`.
    """

    __slots__ = ("_bounds", "_counts", "_maximum", "_minimum", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0
        self._minimum, self._maximum = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Counts one value, 0 or more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if value < self._minimum:
            self._minimum = value
        if value > self._maximum:
            self._maximum = value

    def read(self) -> Distribution:
        """Returns what was counted so far."""
        some = self._maximum >= 0
        return Distribution(
            self._bounds,
            tuple(self._counts),
            self._sum,
            self._minimum if some else None,
            self._maximum if some else None,
        )
