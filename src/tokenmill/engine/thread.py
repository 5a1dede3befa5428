"""The thread that the engine runs on. Requests come in by a queue, events go out by streams."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque

from tokenmill.core.errors import Busy, Closed
from tokenmill.engine.active import ActiveRequest
from tokenmill.engine.engine import Engine, as_typed
from tokenmill.engine.streams import RequestStream

_PAUSE = 0.01
"""Seconds between two looks whether another model has given memory back."""

_running: weakref.WeakSet[EngineThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends what still runs: a step in flight while the interpreter goes would abort the process."""
    for thread in list(_running):
        thread.close()


class EngineThread:
    """Runs an engine's steps while there is work, and sleeps while there is none.

    Args:
        engine: from now on touched by this thread only.
        max_queue: most requests that wait while no row is free.
        name: shown in debuggers.
    """

    def __init__(
        self, engine: Engine, *, max_queue: int = 1024, name: str = "tokenmill-engine"
    ) -> None:
        self._engine, self._max_queue = engine, max_queue
        self._inbox: deque[ActiveRequest] = deque()
        self._cancelled: deque[RequestStream] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._drains_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def submit(self, request: ActiveRequest) -> None:
        """Hands a request over; its stream gets the events.

        Raises:
            Busy: the queue is full; nothing was changed.
            Closed: the engine was shut down.
        """
        engine = self._engine
        with self._changed:
            if self._closing:
                raise Closed("the model was closed", fix="Load it again")
            waiting = engine.num_waiting + len(self._inbox) - engine.num_free_rows
            if waiting >= self._max_queue:
                engine.metrics.refused_busy()
                raise Busy(
                    "the queue is full",
                    why=f"{self._max_queue} requests wait, which is what max_queue allows",
                    fix="Try again later",
                    retry_after=engine.seconds_per_finish,
                )
            self._inbox.append(request)
            self._changed.notify()

    def cancel(self, stream: RequestStream) -> None:
        """Ends the stream's request soon, also while it waits."""
        self._cancelled.append(stream)
        # No lock: a signal handler may cancel while its own thread holds it. At worst a request
        # in the queue of an engine that pauses is cancelled a pause later.

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, ends those there are and releases the model. Idempotent.

        Args:
            drain_seconds: how long requests may go on before they are cancelled.
        """
        with self._changed:
            self._closing = True
            self._drains_until = time.perf_counter() + drain_seconds
            self._changed.notify()
        _running.discard(self)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        engine = self._engine
        while self._take_in():
            try:
                while self._cancelled:
                    engine.cancel(self._cancelled.popleft())
                advanced = engine.step()
            except Exception as error:
                engine.fail_all(as_typed(error))
                advanced = True
            engine.sinks.flush()
            if not advanced and engine.has_work:
                with self._changed:
                    self._changed.wait(_PAUSE)
        engine.shutdown()
        engine.sinks.flush()

    def _take_in(self) -> bool:
        """Waits for work; returns False when the thread is to end."""
        engine = self._engine
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._closing or engine.has_work)
            while self._inbox:
                engine.add(self._inbox.popleft())
            if not self._closing:
                return True
            return engine.has_work and time.perf_counter() < self._drains_until
