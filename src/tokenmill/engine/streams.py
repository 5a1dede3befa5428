"""A request's events on their way from the engine thread to whoever reads them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.ids import RequestId
from tokenmill.telemetry.timeline import Timeline


class RequestStream:
    """Events of one request. The engine puts, one reader takes; neither waits for the other.

    A reader that falls behind finds the waiting events joined into one, so a slow reader costs
    no memory per token beyond the text itself.
    """

    def __init__(self, request_id: RequestId, timeline: Timeline) -> None:
        self.request_id = request_id
        self.timeline = timeline
        self._events: deque[GenerateEvent] = deque()
        # A bare lock as the signal: held while there is nothing to read. A condition takes ten
        # times as long to notify, on the engine's thread, for every token of every request.
        self._empty = threading.Lock()
        self._empty.acquire()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the reader has lost interest."""
        return self._cancelled

    def is_cancelled(self) -> bool:
        """The same, as a callable for `Row.cancelled`."""
        return self._cancelled

    def cancel(self) -> None:
        """Asks the engine to stop; the row is dropped with the step in flight. Idempotent."""
        self._cancelled = True

    def put(self, event: GenerateEvent) -> None:
        """Adds an event; only the engine calls this."""
        self._events.append(event)
        if self._empty.locked():
            self._empty.release()

    def __iter__(self) -> Iterator[GenerateEvent]:
        """Yields events up to the one with a finish.

        Raises:
            TokenmillError: the request ended with an error; raised after the events before it.
        """
        while True:
            self._empty.acquire()
            waiting: list[GenerateEvent] = []
            while self._events:
                waiting.append(self._events.popleft())
            if not waiting:  # what this signal told of was taken with the one before
                continue
            event = _join(waiting)
            finish = event.finish
            if finish is None:
                yield event
                continue
            if finish.error is None:
                yield event
                return
            if event.text:
                yield event._replace(finish=None)
            raise finish.error

    def result(self) -> GenerateResult:
        """Waits for the end and returns the whole.

        Raises:
            TokenmillError: the request ended with an error.
        """
        text: list[str] = []
        token_ids: list[int] = []
        for event in self:
            text.append(event.text)
            token_ids.extend(event.token_ids)
            finish = event.finish
        assert finish is not None, "iteration ends with the event that has a finish"
        return GenerateResult(
            text="".join(text),
            token_ids=tuple(token_ids),
            finish_reason=finish.reason.openai,
            reason=finish.reason,
            usage=finish.usage,
            timeline=self.timeline,
            request_id=self.request_id,
            note=finish.note,
        )


def _join(events: list[GenerateEvent]) -> GenerateEvent:
    if len(events) == 1:
        return events[0]
    return GenerateEvent(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        choice=events[0].choice,
        finish=events[-1].finish,
    )
