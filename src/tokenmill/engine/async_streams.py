"""The same events, read on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.ids import RequestId
from tokenmill.engine.signals import LoopSignal
from tokenmill.engine.streams import RequestStream, result_of
from tokenmill.telemetry.timeline import Timeline


class AsyncRequestStream(AsyncIterator[GenerateEvent]):
    """Events of one request, read by one task: `async for event in stream`.

    Dropping it, closing it, or cancelling the task that waits for it cancels the request at once.
    A task that falls behind finds the waiting events joined into one.

    Args:
        stream: nobody else reads it. Made on the running event loop, which from now on is the
            only one to read it.
    """

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self._signal = LoopSignal(asyncio.get_running_loop())
        self._taken: deque[GenerateEvent] = deque()
        stream.listen(self._signal)

    @property
    def request_id(self) -> RequestId:
        """The request's id."""
        return self._stream.request_id

    @property
    def timeline(self) -> Timeline:
        """The stations that it passed so far."""
        return self._stream.timeline

    def cancel(self) -> None:
        """Asks the engine to stop; the events go on to the one with the finish. Idempotent."""
        self._stream.cancel()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.cancel()

    async def __anext__(self) -> GenerateEvent:
        """Waits for the next event.

        Raises:
            TokenmillError: the request ended with an error; raised after the events before it.
        """
        while not self._taken:
            self._taken.extend(self._stream.take())
            if self._taken:
                break
            if self._stream.is_over:
                raise StopAsyncIteration
            try:
                await self._signal.wait()
            except BaseException:
                self.cancel()
                raise
        return self._taken.popleft()

    async def result(self) -> GenerateResult:
        """Waits for the end and returns the whole.

        Raises:
            TokenmillError: the request ended with an error.
        """
        return result_of(self._stream, [event async for event in self])

    def __del__(self) -> None:
        self.cancel()


class AsyncStreamEvents(AsyncIterator[GenerateEvent]):
    """Yields the events of a request that is handed over when the first one is asked for.

    The request is cancelled when this ends early or is dropped. (An async generator would only
    be closed by its loop, some time after.)
    """

    def __init__(self, submit: Callable[[], Awaitable[AsyncRequestStream]]) -> None:
        self._submit = submit
        self._stream: AsyncRequestStream | None = None
        self._is_closed = False

    async def __anext__(self) -> GenerateEvent:
        """Waits for the next event; see `AsyncRequestStream.__anext__`."""
        if self._stream is None and not self._is_closed:
            self._stream = await self._submit()
        if self._is_closed:  # by another task, perhaps while this one handed the request over
            await self.aclose()
        if self._is_closed or self._stream is None:
            raise StopAsyncIteration
        return await anext(self._stream)

    async def aclose(self) -> None:
        """Cancels the request unless it has ended. Idempotent."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()
