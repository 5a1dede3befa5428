"""The thread that the engine runs on. Requests come in by a queue, events go out by streams."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque

from tokenmill.core.errors import Closed
from tokenmill.engine.engine import ActiveRequest, Engine, as_typed

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
        name: shown in debuggers.
    """

    def __init__(self, engine: Engine, name: str = "tokenmill-engine") -> None:
        self._engine = engine
        self._inbox: deque[ActiveRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def submit(self, request: ActiveRequest) -> None:
        """Hands a request over; its stream gets the events.

        Raises:
            Closed: the engine was shut down.
        """
        with self._changed:
            if self._closing:
                raise Closed("the model was closed", fix="Load it again")
            self._inbox.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Cancels what runs, releases the model and waits for the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        _running.discard(self)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while self._take_in():
            try:
                self._engine.step()
            except Exception as error:
                self._engine.fail_all(as_typed(error))
        self._engine.shutdown()

    def _take_in(self) -> bool:
        """Waits for work; returns False when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._closing or self._engine.has_work)
            while self._inbox:
                self._engine.add(self._inbox.popleft())
            return not self._closing
