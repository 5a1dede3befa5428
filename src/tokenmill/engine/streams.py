"""A request's events on their way from the engine thread to whoever reads them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from tokenmill.core.errors import TokenmillError
from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.ids import RequestId
from tokenmill.engine.signals import LoopSignal, Signal, ThreadSignal
from tokenmill.telemetry.timeline import Timeline

_MOST_WAITING = 64
"""So many events wait for a slow reader one by one; then they are joined."""


class Sinks:
    """The streams that were written to since the last flush. Used by the engine thread only.

    Readers learn of what was put when `flush` is called: once a step, all together. So whoever
    puts into streams with sinks calls `flush` before it computes, waits or ends, whatever was
    raised in between.
    """

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[RequestStream, None] = {}

    def add(self, stream: RequestStream) -> None:
        """Has the stream's reader woken by the next flush; `RequestStream.put` calls this."""
        self._written[stream] = None

    def flush(self) -> None:
        """Wakes the readers: blocked threads each, tasks by one call for each event loop.

        Never blocks, never raises. Where a loop was closed, its requests are cancelled.
        """
        if self._written:
            written, self._written = self._written, {}
            _wake(written)


class RequestStream:
    """Events of one request. The engine puts, one reader takes; neither waits for the other.

    A reader that falls behind finds the waiting events joined into one, so a slow reader costs
    no memory per token beyond the text and the ids themselves.

    Args:
        request_id: whose events these are.
        timeline: the request's.
        sinks: noted there with every event, for whoever flushes them; None wakes the reader at
            once.
        on_cancel: called with the stream when the reader loses interest before the end: once, by
            the thread that cancels. It must not block.
    """

    def __init__(
        self,
        request_id: RequestId,
        timeline: Timeline,
        *,
        sinks: Sinks | None = None,
        on_cancel: Callable[[RequestStream], object] | None = None,
    ) -> None:
        self.request_id = request_id
        self.timeline = timeline
        self._sinks = sinks
        self._on_cancel = on_cancel
        self._events: deque[GenerateEvent] = deque()
        self._signal: Signal = ThreadSignal()
        self._cancelled = False
        self._first_cancel = threading.Lock()  # taken for good by who cancels first
        self._is_complete = False  # the engine has put the finish
        self._is_over = False  # the reader has taken it
        self._error: TokenmillError | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the reader has lost interest."""
        return self._cancelled

    def is_cancelled(self) -> bool:
        """The same, as a callable for `Row.cancelled`."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """Whether the event with the finish has been taken."""
        return self._is_over

    def cancel(self) -> None:
        """Asks the engine to stop; the row is dropped with the step in flight.

        Idempotent, from any thread; without effect on a request that has ended.
        """
        if self._is_complete:
            return
        self._cancelled = True
        if self._on_cancel is not None and self._first_cancel.acquire(blocking=False):
            self._on_cancel(self)

    def put(self, event: GenerateEvent) -> None:
        """Adds an event; only the engine thread calls this. Its reader is woken by the flush."""
        if event.finish is not None:
            self._is_complete = True
        if len(self._events) >= _MOST_WAITING:
            # A reader may take from the other end meanwhile: both get a part, in order.
            self._events.extend(_joined(_drain(self._events.pop)[::-1]))
        self._events.append(event)
        if self._sinks is None:
            _wake((self,))
        else:
            self._sinks.add(self)

    def listen(self, signal: Signal) -> None:
        """Has this signal set for new events, in place of the stream's own.

        What came before is told to nobody: take before the first wait.
        """
        self._signal = signal

    def take(self) -> list[GenerateEvent]:
        """Returns what waits, joined; nothing where nothing does. Never blocks.

        Raises:
            TokenmillError: the request ended with an error, and what came before it was taken.
        """
        if self._error is not None:
            raise self._error
        events = _joined(_drain(self._events.popleft))
        finish = events[-1].finish if events else None
        if finish is None:
            return events
        self._is_over = True
        if finish.error is not None:
            self._error = finish.error
            last = events.pop()._replace(finish=None)
            if last.text or last.token_ids:
                events.append(last)
            if not events:
                raise self._error
        return events

    def __iter__(self) -> Iterator[GenerateEvent]:
        """Yields events up to the one with a finish.

        Raises:
            TokenmillError: the request ended with an error; raised after the events before it.
        """
        signal = self._signal
        assert isinstance(signal, ThreadSignal), "a stream that a loop listens to is read there"
        while self._error is not None or not self._is_over:
            events = self.take()
            if not events:
                signal.wait()
            yield from events

    def result(self) -> GenerateResult:
        """Waits for the end and returns the whole.

        Raises:
            TokenmillError: the request ended with an error.
        """
        return result_of(self, list(self))


class StreamEvents(Iterator[GenerateEvent]):
    """Yields a stream's events; the request is cancelled when this ends early or is dropped."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self._events = iter(stream)

    def __next__(self) -> GenerateEvent:
        try:
            return next(self._events)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cancels the request unless it has ended. Idempotent."""
        self._stream.cancel()

    def __del__(self) -> None:
        self.close()


def result_of(stream: RequestStream, events: Sequence[GenerateEvent]) -> GenerateResult:
    """Returns the result that all events of a stream make, the one with the finish last."""
    finish = events[-1].finish
    assert finish is not None, "iteration ends with the event that has a finish"
    return GenerateResult(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        finish_reason=finish.reason.openai,
        reason=finish.reason,
        usage=finish.usage,
        timeline=stream.timeline,
        request_id=stream.request_id,
        note=finish.note,
    )


def _wake(streams: Iterable[RequestStream]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[RequestStream]] = {}
    for stream in streams:
        signal = stream._signal
        if isinstance(signal, ThreadSignal):
            signal.set()
        else:
            loops.setdefault(signal.loop, []).append(stream)
    for loop, on_loop in loops.items():
        if not _call(loop, [stream._signal for stream in on_loop]):
            for stream in on_loop:
                stream.cancel()


def _call(loop: asyncio.AbstractEventLoop, signals: Iterable[Signal]) -> bool:
    """Sets signals on their loop; returns False where it was closed, so that nobody reads."""
    if loop.is_closed():
        return False
    ready = [signal for signal in signals if isinstance(signal, LoopSignal) and signal.arm()]
    try:
        if ready:
            loop.call_soon_threadsafe(LoopSignal.set_all, ready)
    except RuntimeError:  # closed since we looked
        return False
    return True


def _drain(pop: Callable[[], GenerateEvent]) -> list[GenerateEvent]:
    """Pops until nothing is left; asking first would race the thread at the other end."""
    events: list[GenerateEvent] = []
    try:
        while True:
            events.append(pop())
    except IndexError:
        return events


def _joined(events: list[GenerateEvent]) -> list[GenerateEvent]:
    """Joins neighbours of the same choice."""
    if len(events) < 2:
        return events
    return [_join(list(run)) for _, run in groupby(events, key=lambda event: event.choice)]


def _join(events: list[GenerateEvent]) -> GenerateEvent:
    return GenerateEvent(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        choice=events[0].choice,
        finish=events[-1].finish,
    )
