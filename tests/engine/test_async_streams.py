"""A request's events, read on an event loop."""

import asyncio
import threading

import pytest

from support.hand_engine import finish
from tokenmill.core.errors import BackendError
from tokenmill.core.events import FinishReason, GenerateEvent
from tokenmill.core.ids import RequestId
from tokenmill.engine.async_streams import AsyncRequestStream, AsyncStreamEvents
from tokenmill.engine.streams import RequestStream, Sinks
from tokenmill.telemetry.timeline import Timeline


def new_stream(**options):
    return RequestStream(RequestId("r"), Timeline("r"), **options)


def put(stream, *tokens, end=None):
    for token in tokens:
        stream.put(GenerateEvent(f"{token} ", (token,)))
    if end is not None:
        stream.put(GenerateEvent("", (), finish=end))


async def turn():
    """Lets every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_waits_comes_joined_and_what_follows_wakes_the_reader():
    async def main():
        sinks = Sinks()
        stream = new_stream(sinks=sinks)
        put(stream, 1, 2)
        reader = AsyncRequestStream(stream)
        read = []

        async def collect():
            while event := await anext(reader, None):
                read.append(event.token_ids)

        task = asyncio.create_task(collect())
        await turn()
        assert read == [(1, 2)]
        put(stream, 3)
        await turn()
        assert read == [(1, 2)]
        sinks.flush()
        await turn()
        assert read == [(1, 2), (3,)]
        put(stream, 4, end=finish())
        sinks.flush()
        await task
        assert read == [(1, 2), (3,), (4,)]

    asyncio.run(main())


def test_a_slow_reader_finds_ten_thousand_events_joined_into_one():
    async def main():
        sinks = Sinks()
        stream = new_stream(sinks=sinks)
        reader = AsyncRequestStream(stream)
        for token in range(10_000):
            put(stream, token)
            sinks.flush()
        put(stream, end=finish())
        sinks.flush()
        events = [event async for event in reader]
        assert [event.token_ids for event in events] == [tuple(range(10_000))]
        assert events[0].finish == finish()

    asyncio.run(main())


def test_a_reader_that_races_the_engine_gets_every_event_once_and_in_order():
    count = 20_000

    async def main():
        sinks = Sinks()
        stream = new_stream(sinks=sinks)
        reader = AsyncRequestStream(stream)

        def write():
            for token in range(count):
                put(stream, token)
                sinks.flush()
            put(stream, end=finish())
            sinks.flush()

        writer = threading.Thread(target=write)
        writer.start()
        result = await reader.result()
        writer.join()
        return result

    assert asyncio.run(main()).token_ids == tuple(range(count))


def test_an_error_is_raised_after_the_events_before_it():
    async def main():
        stream = new_stream()
        error = BackendError("a step failed")
        put(stream, 1, end=finish(error=error))
        reader = AsyncRequestStream(stream)
        assert (await anext(reader)).token_ids == (1,)
        with pytest.raises(BackendError) as raised:
            await anext(reader)
        assert raised.value is error

    asyncio.run(main())


def test_cancelling_the_task_that_waits_cancels_the_request_at_once():
    async def main():
        told = []
        stream = new_stream(on_cancel=told.append)
        reader = AsyncRequestStream(stream)  # held, so that it is not the drop that cancels
        task = asyncio.create_task(reader.result())
        await turn()
        assert told == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == [stream]
        del reader

    asyncio.run(main())


def test_a_timeout_cancels_the_request():
    async def main():
        told = []
        reader = AsyncRequestStream(new_stream(on_cancel=told.append))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(reader)
        assert len(told) == 1

    asyncio.run(main())


def test_leaving_the_loop_cancels_the_request_before_the_next_statement():
    async def main():
        told = []
        stream = new_stream(on_cancel=told.append)
        put(stream, 1, 2)

        async def submit():
            return AsyncRequestStream(stream)

        async for event in AsyncStreamEvents(submit):
            assert event.token_ids == (1, 2)
            break
        assert told == [stream]

    asyncio.run(main())


def test_reading_to_the_end_cancels_nothing():
    async def main():
        told = []
        stream = new_stream(on_cancel=told.append)
        put(stream, 1, end=finish(FinishReason.EOS))
        reader = AsyncRequestStream(stream)
        result = await reader.result()
        assert (result.text, result.reason, result.request_id) == ("1 ", FinishReason.EOS, "r")
        assert [event async for event in reader] == []
        del reader
        assert told == []

    asyncio.run(main())


def test_closing_events_cancels_and_ends_them():
    async def main():
        told, submitted = [], []
        stream = new_stream(on_cancel=told.append)
        put(stream, 1)

        async def submit():
            submitted.append(stream)
            return AsyncRequestStream(stream)

        events = AsyncStreamEvents(submit)
        await anext(events)
        await events.aclose()
        assert (told, [event async for event in events]) == ([stream], [])
        unused = AsyncStreamEvents(submit)
        await unused.aclose()
        assert ([event async for event in unused], submitted) == ([], [stream])

    asyncio.run(main())


def test_closing_events_while_the_request_is_handed_over_cancels_it():
    async def main():
        told, may_go_on = [], asyncio.Event()

        async def submit():
            await may_go_on.wait()
            return AsyncRequestStream(new_stream(on_cancel=told.append))

        events = AsyncStreamEvents(submit)
        first = asyncio.create_task(anext(events, None))
        await turn()
        await events.aclose()
        may_go_on.set()
        assert await first is None
        assert len(told) == 1

    asyncio.run(main())
