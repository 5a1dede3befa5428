"""A request's stations, each with its start, end and counts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

Clock = float
"""Seconds of `time.perf_counter`."""


class Span(NamedTuple):
    """One stay in a station.

    Attributes:
        name: "request", "prepare", "admit", "queue", "recall", "prefill", "decode", "finish" or
            "keep".
        start, end: `time.perf_counter` seconds.
        counts: figures of the stay, e.g. {"tokens": 64, "rows": 3}.
    """

    name: str
    start: Clock
    end: Clock
    counts: Mapping[str, int | float | str] = {}

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class Timeline:
    """What happened to one request. Written by one thread at a time, read by anyone.

    Attributes:
        request_id: whose it is.
        started_at: wall-clock time of creation, seconds since the epoch.
        start: `perf_counter` of creation.
        first_token: `perf_counter` when the first token was known, None before.
        end: `perf_counter` of the finish, None before.
        spans: in order of their ends.
        content: what is needed to run the request again; filled at the finish.
    """

    __slots__ = ("content", "end", "first_token", "request_id", "spans", "start", "started_at")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.started_at = time.time()
        self.start = time.perf_counter()
        self.first_token: Clock | None = None
        self.end: Clock | None = None
        self.spans: list[Span] = []
        self.content: dict[str, object] = {}

    def add(self, name: str, start: Clock, end: Clock, **counts: int | float | str) -> None:
        """Records a finished span."""
        self.spans.append(Span(name, start, end, counts))

    @contextmanager
    def span(
        self, name: str, **counts: int | float | str
    ) -> Iterator[dict[str, int | float | str]]:
        """Records the body as a span; the body may add to the counts it is given."""
        start = time.perf_counter()
        try:
            yield counts
        finally:
            self.spans.append(Span(name, start, time.perf_counter(), counts))

    def total(self, name: str) -> float:
        """Seconds in all spans of that name."""
        return sum(span.seconds for span in self.spans if span.name == name)

    def count(self, name: str, key: str) -> float:
        """Sum of one figure over all spans of that name."""
        return sum(float(s.counts[key]) for s in self.spans if s.name == name and key in s.counts)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the request's creation to its first token."""
        return None if self.first_token is None else self.first_token - self.start

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens computed per second of prefill."""
        return _rate(self.count("prefill", "tokens"), self.total("prefill"))

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens per second after the first, as the reader saw them."""
        if self.first_token is None or self.end is None:
            return None
        return _rate(self.count("decode", "tokens"), self.end - self.first_token)


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None
