"""An engine without a model, for the readers' side: steps are taken by hand, or by a thread."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

from tokenmill.core.errors import Busy, Closed
from tokenmill.core.events import Finish, FinishReason, GenerateEvent, Usage
from tokenmill.engine.streams import RequestStream, Sinks
from tokenmill.package.model_package import GenerationDefaults
from tokenmill.telemetry.timeline import Timeline


def finish(reason=FinishReason.LENGTH, error=None, tokens=0):
    return Finish(reason, Usage(1, tokens), "", error)


class HandEngine:
    """Answers prompt `[n, length]` with `length` times the token n, one a step.

    Has what `LLM` has, so that it can stand in its place.

    Attributes:
        errors: what to fail with at the first step, by n; or what `submit` raises, by -n.
        max_queue: most requests in all; more are refused with `Busy`.
        cancelled: the n of requests whose cancellation was told, in that order.
        most: how many requests there were at once.
        ended: the n of requests in the order of their ends.
    """

    def __init__(self, *, max_rows=4, max_queue=None, errors=None):
        self.limits = SimpleNamespace(max_rows=max_rows)
        self.package = SimpleNamespace(defaults=GenerationDefaults())
        self.errors, self.max_queue = errors or {}, max_queue
        self.sinks, self.live = Sinks(), {}
        self.cancelled, self.ended, self.most, self.is_closed = [], [], 0, False
        self.changed = threading.Condition()

    def submit(self, request):
        number, length = request.prompt
        with self.changed:
            if self.is_closed:
                raise Closed("closed")
            if -number in self.errors:
                raise self.errors[-number]
            if self.max_queue is not None and len(self.live) >= self.max_queue:
                raise Busy("full", retry_after=7.0)
            stream = RequestStream(
                request.id, Timeline(request.id), sinks=self.sinks,
                on_cancel=lambda stream: self._note_cancel(number),
            )  # fmt: skip
            self.live[stream] = [number, length, 0]
            self.most = max(self.most, len(self.live))
            self.changed.notify_all()
            return stream

    def step(self):
        """Carries `max_rows` requests one token further and wakes their readers."""
        with self.changed:
            rows = [s for s in self.live if s.cancelled] + list(self.live)[: self.limits.max_rows]
            for stream in dict.fromkeys(rows):
                self._advance(stream)
        self.sinks.flush()

    def wait_for(self, condition):
        """Blocks until requests came, were cancelled or the engine was closed so that it holds."""
        with self.changed:
            self.changed.wait_for(condition)

    def _note_cancel(self, number):
        with self.changed:
            self.cancelled.append(number)
            self.changed.notify_all()

    def _advance(self, stream):
        row = self.live[stream]
        number, length, made = row
        if stream.cancelled:
            event = GenerateEvent("", finish=finish(FinishReason.CANCELLED, tokens=made))
        elif number in self.errors:
            event = GenerateEvent("", finish=finish(FinishReason.ERROR, self.errors[number]))
        else:
            row[2] = made + 1
            ended = finish(tokens=length) if row[2] == length else None
            event = GenerateEvent(f"{number} ", (number,), finish=ended)
        if event.finish is not None:
            del self.live[stream]
            self.ended.append(number)
        stream.put(event)

    def close(self):
        with self.changed:
            self.is_closed = True
            for stream in list(self.live):
                stream.cancel()
            self.changed.notify_all()

    @contextmanager
    def running(self):
        """Takes steps on a thread while there is work."""
        over = False

        def work():
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.live or over)
                    if not self.live:
                        return
                self.step()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield self
        finally:
            with self.changed:
                over = True
                self.changed.notify_all()
            thread.join()
