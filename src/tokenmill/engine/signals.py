"""How a reader is told that there is something to read: on a thread, or on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence


class ThreadSignal:
    """Wakes the one thread that waits. Set by one thread at a time.

    A set while nobody waits ends the next wait at once; several count as one.
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        # A bare lock, held while there is nothing to tell. A condition takes ten times as long
        # to notify, on the engine's thread, for every token of every request.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def set(self) -> None:
        """Ends the wait."""
        if self._quiet.locked():
            self._quiet.release()

    def wait(self) -> None:
        """Blocks until it is set."""
        self._quiet.acquire()


class LoopSignal:
    """Wakes the one task that waits, on the loop that it waits on.

    Attributes:
        loop: where `wait` is awaited.
    """

    __slots__ = ("_on_its_way", "_waiter", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._on_its_way = False

    def arm(self) -> bool:
        """Returns whether `set_all` has to be called on the loop; not while a call is on its way.

        So a loop that is busy for long finds one call of a signal, not one for every step.
        """
        if self._on_its_way:
            return False
        self._on_its_way = True
        return True

    @staticmethod
    def set_all(signals: Sequence[LoopSignal]) -> None:
        """Ends the waits of signals that were armed; runs on their loop."""
        for signal in signals:
            # First, so that what is written from here on is told of by a call of its own.
            signal._on_its_way = False
            if signal._waiter is not None and not signal._waiter.done():
                signal._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for the next `set_all`; what was told before must have been looked at."""
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


Signal = ThreadSignal | LoopSignal
