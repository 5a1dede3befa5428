"""Many requests through one model, a bounded number of them at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenmill.core.errors import Busy
from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.signals import Signal, ThreadSignal
from tokenmill.engine.streams import RequestStream, result_of

Submit = Callable[[GenerateRequest], RequestStream]

Report = Callable[[int, int], object]
"""Called with the requests that are done and the tokens that came so far."""


def window_of(max_rows: int) -> int:
    """Returns how many requests keep that many rows busy: as many wait as can end in one step."""
    return 2 * max_rows


@dataclass(slots=True)
class _Running:
    stream: RequestStream
    events: list[GenerateEvent] = field(default_factory=list)


class Batch:
    """The requests of one call, those that run, and the results so far.

    Whoever drives it repeats: `fill`, then `collect`, and where that brought nothing, a wait for
    the signal. On any exception it calls `cancel` and gives up; that is safe from any thread,
    the others are for one at a time.

    Args:
        submit: hands a request over.
        requests: in the order of the results.
        window: most of them that are handed over and not done, at least 1.
        signal: set when there may be something to collect.
    """

    def __init__(
        self, submit: Submit, requests: Sequence[GenerateRequest], *, window: int, signal: Signal
    ) -> None:
        self._submit = submit
        self._window = window
        self._signal = signal
        self._waiting = deque(enumerate(requests))
        self._running: dict[int, _Running] = {}
        self._results: dict[int, GenerateResult] = {}
        self._is_queue_full = False
        self._is_cancelled = False
        self.num_tokens = 0

    @property
    def num_done(self) -> int:
        """How many results there are."""
        return len(self._results)

    @property
    def is_done(self) -> bool:
        """Whether every request has its result."""
        return not self._waiting and not self._running

    @property
    def wants_more(self) -> bool:
        """Whether `fill` has something to hand over."""
        if self._is_queue_full or self._is_cancelled:
            return False
        return bool(self._waiting) and len(self._running) < self._window

    @property
    def results(self) -> list[GenerateResult]:
        """The results in the order of the requests, once all are done."""
        return [result for _, result in sorted(self._results.items(), key=lambda item: item[0])]

    def fill(self) -> float:
        """Hands requests over until the window or the engine's queue is full.

        Returns:
            Seconds after which to try again; 0 for the usual case that `collect` tells when.

        Raises:
            TokenmillError: a request that cannot run.
        """
        while self.wants_more:
            index, request = self._waiting[0]
            try:
                stream = self._submit(request)
            except Busy as busy:
                if not self._running:  # the queue is full of what others asked
                    return busy.retry_after
                self._is_queue_full = True
                break
            stream.listen(self._signal)
            self._running[index] = _Running(stream)
            self._waiting.popleft()
            if self._is_cancelled:  # perhaps after `cancel` looked at what runs
                stream.cancel()
        return 0

    def collect(self) -> bool:
        """Takes what has come, and returns whether anything has.

        Raises:
            TokenmillError: a request ended with an error.
        """
        before = self.num_tokens, self.num_done
        for index, running in list(self._running.items()):
            events = running.stream.take()
            running.events += events
            self.num_tokens += sum(len(event.token_ids) for event in events)
            if running.stream.is_over:
                self._results[index] = result_of(running.stream, running.events)
                del self._running[index]
                self._is_queue_full = False
        return (self.num_tokens, self.num_done) != before

    def cancel(self) -> None:
        """Ends what runs; what waits is not handed over any more."""
        self._is_cancelled = True
        for running in list(self._running.values()):
            running.stream.cancel()


def run_batch(
    submit: Submit,
    requests: Sequence[GenerateRequest],
    *,
    window: int,
    report: Report,
    sleep: Callable[[float], object] = time.sleep,
) -> list[GenerateResult]:
    """Runs requests to their ends, waiting on this thread.

    Args:
        submit, requests, window: see `Batch`.
        report: see `Report`; called whenever something came.
        sleep: waits that many seconds, where others fill the engine's queue.

    Returns:
        The results in the order of the requests.

    Raises:
        TokenmillError: the first error, after the other requests were cancelled.
    """
    signal = ThreadSignal()
    batch = Batch(submit, requests, window=window, signal=signal)
    try:
        while not batch.is_done:
            pause = batch.fill()
            if batch.collect():
                report(batch.num_done, batch.num_tokens)
            elif pause:
                sleep(pause)
            else:
                signal.wait()
    except BaseException:
        batch.cancel()
        raise
    return batch.results
