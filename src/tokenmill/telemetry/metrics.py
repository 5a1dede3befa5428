"""What a model's engine does and has done, in figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from threading import Lock
from typing import NamedTuple

from tokenmill.telemetry.distribution import SECONDS, SIZES, Distribution, Histogram


class Gauges(NamedTuple):
    """What is the case at one moment.

    Attributes:
        running: requests that hold a row.
        waiting: requests that hold none and never did, by what they wait for; at most one name
            at a time where all wait for what the first of them waits for.
        parked: requests that held a row and gave it up for a while.
        reserved_bytes: what admitted requests may come to use.
        budget_bytes: what they may reserve together; None where that is not known.
        committed_bytes: state that is in memory; None where that is not known.
    """

    running: int
    waiting: Mapping[str, int]
    parked: int
    reserved_bytes: int
    budget_bytes: int | None
    committed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """An engine's figures at one moment: plain data, each true or None.

    Attributes:
        uptime_seconds: since the engine was made; counts of two moments over the difference of
            this are rates.
        running_requests: see `Gauges.running`.
        waiting_requests: see `Gauges.waiting`.
        parked_requests: see `Gauges.parked`.
        reserved_bytes: see `Gauges.reserved_bytes`.
        budget_bytes: see `Gauges.budget_bytes`.
        committed_bytes: see `Gauges.committed_bytes`.
        admitted_requests: got a row without delay or cut.
        capped_requests: got a lower `max_tokens` than they asked for.
        queued_requests: had to wait, by what for.
        rejected_requests: can never fit.
        refused_busy_requests: found the queue full.
        step_seconds: whole steps.
        outside_run_seconds: steps without the runtime's own calls: planning, sampling, text.
        step_rows: requests in a step.
        step_prefill_rows: requests whose prompts are computed, over the steps that have such.
        step_prefill_tokens: tokens of these prompts, over the same steps.
        batch_occupancy: mean of `step_rows` over the most rows that there can be, 0 to 1; None
            before the first step, and where the number of rows is not known.
        preemptions: requests that lost their row for a while, by how: "swap" or "replay".
        replayed_tokens: computed again after a preemption.
        queue_seconds: from coming in to the first row.
        first_token_seconds: from coming in to the first token.
        inter_token_seconds: between a request's tokens.
        generated_tokens: drawn so far, by running requests too.
        finished_requests: ended, by `FinishReason.value`.
        finished_prompt_tokens: prompt tokens of ended requests.
        finished_completion_tokens: completion tokens of ended requests.
    """

    uptime_seconds: float
    running_requests: int
    waiting_requests: Mapping[str, int]
    parked_requests: int
    reserved_bytes: int
    budget_bytes: int | None
    committed_bytes: int | None
    admitted_requests: int
    capped_requests: int
    queued_requests: Mapping[str, int]
    rejected_requests: int
    refused_busy_requests: int
    step_seconds: Distribution
    outside_run_seconds: Distribution
    step_rows: Distribution
    step_prefill_rows: Distribution
    step_prefill_tokens: Distribution
    batch_occupancy: float | None
    preemptions: Mapping[str, int]
    replayed_tokens: int
    queue_seconds: Distribution
    first_token_seconds: Distribution
    inter_token_seconds: Distribution
    generated_tokens: int
    finished_requests: Mapping[str, int]
    finished_prompt_tokens: int
    finished_completion_tokens: int

    def as_dict(self) -> dict[str, object]:
        """Returns plain JSON data, in the order of the fields."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


class EngineMetrics:
    """Counts what an engine does. Thread-safe.

    Every method takes one short lock, so a snapshot never shows half of a step.

    Args:
        gauges: tells what is the case now; called by `snapshot` on the reader's thread.
        max_rows: most rows of a step, at least 1; None where that is not known.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        gauges: Callable[[], Gauges],
        *,
        max_rows: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._gauges, self._max_rows, self._clock = gauges, max_rows, clock
        self._start = clock()
        self._lock = Lock()
        self._admitted = self._capped = self._rejected = self._refused_busy = 0
        self._queued: Counter[str] = Counter()
        self._preemptions: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._replayed_tokens = self._prompt_tokens = self._completion_tokens = 0
        self._step, self._outside = Histogram(SECONDS), Histogram(SECONDS)
        self._rows, self._prefill_rows, self._prefill_tokens = (Histogram(SIZES) for _ in range(3))
        self._queue, self._first_token, self._next_token = (Histogram(SECONDS) for _ in range(3))

    def admitted(self) -> None:
        """A request got a row without delay or cut."""
        with self._lock:
            self._admitted += 1

    def capped(self) -> None:
        """A request got a lower ceiling than it asked for."""
        with self._lock:
            self._capped += 1

    def queued(self, why: str) -> None:
        """A request has to wait; counted once a request.

        Args:
            why: what for, out of a few fixed words, without figures.
        """
        with self._lock:
            self._queued[why] += 1

    def rejected(self) -> None:
        """A request can never fit."""
        with self._lock:
            self._rejected += 1

    def refused_busy(self) -> None:
        """A request found the queue full."""
        with self._lock:
            self._refused_busy += 1

    def stepped(
        self,
        *,
        decode_rows: int,
        prefill_rows: int,
        prefill_tokens: int,
        seconds: float,
        run_seconds: float,
    ) -> None:
        """A step ended.

        Args:
            decode_rows: requests in it that decode.
            prefill_rows: requests in it whose prompts are computed.
            prefill_tokens: of these prompts, in this step.
            seconds: the whole step.
            run_seconds: the part inside the runtime's own calls, at most `seconds`.
        """
        with self._lock:
            self._step.add(seconds)
            self._outside.add(seconds - run_seconds)
            self._rows.add(decode_rows + prefill_rows)
            if prefill_rows:
                self._prefill_rows.add(prefill_rows)
                self._prefill_tokens.add(prefill_tokens)

    def preempted(self, how: str) -> None:
        """A request lost its row for a while: by "swap" or "replay"."""
        with self._lock:
            self._preemptions[how] += 1

    def replayed(self, tokens: int) -> None:
        """So many tokens were computed again after a preemption."""
        with self._lock:
            self._replayed_tokens += tokens

    def started(self, queue_seconds: float) -> None:
        """A request got its first row, so long after it came in."""
        with self._lock:
            self._queue.add(queue_seconds)

    def first_token(self, seconds: float) -> None:
        """A request's first token was drawn, so long after the request came in."""
        with self._lock:
            self._first_token.add(seconds)

    def next_tokens(self, seconds: Sequence[float]) -> None:
        """Tokens of several requests were drawn, each so long after the one before.

        Those of a step all together, since a lock for each would be most of the cost.
        """
        with self._lock:
            for each in seconds:
                self._next_token.add(each)

    def finished(self, reason: str, prompt_tokens: int, completion_tokens: int) -> None:
        """A request ended.

        Args:
            reason: the value of its `FinishReason`.
            prompt_tokens: of its usage.
            completion_tokens: of its usage.
        """
        with self._lock:
            self._finished[reason] += 1
            self._prompt_tokens += prompt_tokens
            self._completion_tokens += completion_tokens

    def snapshot(self) -> Metrics:
        """Returns the figures of this moment, which do not change any more."""
        gauges = self._gauges()  # outside the lock: it may take locks of its own
        with self._lock:
            rows, first, following = (
                histogram.read() for histogram in (self._rows, self._first_token, self._next_token)
            )
            return Metrics(
                uptime_seconds=self._clock() - self._start,
                running_requests=gauges.running,
                waiting_requests=dict(gauges.waiting),
                parked_requests=gauges.parked,
                reserved_bytes=gauges.reserved_bytes,
                budget_bytes=gauges.budget_bytes,
                committed_bytes=gauges.committed_bytes,
                admitted_requests=self._admitted,
                capped_requests=self._capped,
                queued_requests=dict(self._queued),
                rejected_requests=self._rejected,
                refused_busy_requests=self._refused_busy,
                step_seconds=self._step.read(),
                outside_run_seconds=self._outside.read(),
                step_rows=rows,
                step_prefill_rows=self._prefill_rows.read(),
                step_prefill_tokens=self._prefill_tokens.read(),
                batch_occupancy=_share(rows.mean, self._max_rows),
                preemptions=dict(self._preemptions),
                replayed_tokens=self._replayed_tokens,
                queue_seconds=self._queue.read(),
                first_token_seconds=first,
                inter_token_seconds=following,
                generated_tokens=first.total + following.total,
                finished_requests=dict(self._finished),
                finished_prompt_tokens=self._prompt_tokens,
                finished_completion_tokens=self._completion_tokens,
            )


def _share(part: float | None, whole: int | None) -> float | None:
    return None if part is None or whole is None else part / whole


def _plain(value: object) -> object:
    if isinstance(value, Distribution):
        return value.as_dict()
    return dict(value) if isinstance(value, Mapping) else value
