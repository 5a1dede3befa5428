"""Events on their way from the engine to a reader."""

import asyncio
import threading
import tracemalloc

import pytest

from support.hand_engine import finish
from tokenmill.core.errors import BackendError
from tokenmill.core.events import GenerateEvent
from tokenmill.core.ids import RequestId
from tokenmill.engine.signals import LoopSignal, ThreadSignal
from tokenmill.engine.streams import RequestStream, Sinks, StreamEvents
from tokenmill.telemetry.timeline import Timeline


def new_stream(**options):
    return RequestStream(RequestId("r"), Timeline("r"), **options)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often it is called from outside."""

    calls = 0

    def call_soon_threadsafe(self, *args, **options):
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)

    def turn(self):
        """Runs what was called."""
        self.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def new_loop():
    loops = []

    def make():
        loops.append(CountingLoop())
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


def on_loop(loop, sinks, **options):
    stream = new_stream(sinks=sinks, **options)
    stream.listen(LoopSignal(loop))
    return stream


def test_events_that_wait_are_joined_into_one():
    stream = new_stream()
    stream.put(GenerateEvent("a", (1,)))
    stream.put(GenerateEvent("b", (2,)))
    stream.put(GenerateEvent("c", (3,), finish=finish()))
    events = list(stream)
    assert [(event.text, event.token_ids) for event in events] == [("abc", (1, 2, 3))]
    assert events[0].finish == finish()


def test_only_neighbours_of_one_choice_are_joined():
    stream = new_stream()
    for choice in (0, 0, 1, 0):
        stream.put(GenerateEvent("x", (choice,), choice))
    stream.put(GenerateEvent("", (), 0, finish()))
    assert [(event.choice, event.text) for event in stream] == [(0, "xx"), (1, "x"), (0, "x")]


def test_an_event_is_readable_as_soon_as_it_is_there():
    stream = new_stream()
    events = iter(stream)
    for token in range(5):
        stream.put(GenerateEvent("x", (token,)))
        assert next(events).token_ids == (token,)


@pytest.mark.parametrize("sinks", [None, Sinks()])
def test_a_reader_that_races_the_engine_gets_every_event_once_and_in_order(sinks):
    stream = new_stream(sinks=sinks)
    count = 20_000

    def write():
        for token in range(count):
            stream.put(GenerateEvent("", (token,), finish=finish() if token == count - 1 else None))
            if sinks is not None:
                sinks.flush()

    writer = threading.Thread(target=write)
    writer.start()
    read = [token for event in stream for token in event.token_ids]
    writer.join()
    assert read == list(range(count))


def test_ten_thousand_events_that_wait_cost_their_text_and_ids_only():
    stream = new_stream()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(10_000):
        stream.put(GenerateEvent("x", (7,)))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000 * (8 + 1) + 30_000
    stream.put(GenerateEvent("", (), finish=finish()))
    (event,) = stream
    assert (event.text, event.token_ids) == ("x" * 10_000, (7,) * 10_000)


def test_an_error_is_raised_after_the_text_before_it_and_again():
    stream = new_stream()
    error = BackendError("a step failed")
    stream.put(GenerateEvent("a", (1,)))
    stream.put(GenerateEvent("", (), finish=finish(error=error)))
    events = iter(stream)
    assert next(events) == GenerateEvent("a", (1,))
    for reader in (events, iter(stream)):
        with pytest.raises(BackendError) as raised:
            next(reader)
        assert raised.value is error


def test_tokens_without_text_come_before_the_error_too():
    stream = new_stream()
    stream.put(GenerateEvent("", (1,)))
    stream.put(GenerateEvent("", (), finish=finish(error=BackendError("a step failed"))))
    assert next(iter(stream)).token_ids == (1,)


def test_a_stream_that_was_read_to_its_end_has_nothing_more():
    stream = new_stream()
    stream.put(GenerateEvent("a", (1,), finish=finish()))
    assert not stream.is_over
    assert stream.result().text == "a"
    assert stream.is_over
    assert list(stream) == []


def test_a_reader_is_woken_by_the_flush_and_not_by_the_event():
    woken = []

    class Told(ThreadSignal):
        def set(self):
            woken.append(True)

    sinks = Sinks()
    stream = new_stream(sinks=sinks)
    stream.listen(Told())
    stream.put(GenerateEvent("a", (1,)))
    assert woken == []
    sinks.flush()
    assert woken == [True]
    sinks.flush()
    assert woken == [True]


def test_a_flush_calls_a_loop_once_for_sixteen_streams(new_loop):
    loop, sinks = new_loop(), Sinks()
    streams = [on_loop(loop, sinks) for _ in range(16)]
    for step in range(1, 4):
        for stream in streams:
            stream.put(GenerateEvent("a", (1,)))
        assert loop.calls == step - 1
        sinks.flush()
        assert loop.calls == step
        loop.turn()


def test_a_flush_calls_every_loop_once_and_threads_besides(new_loop):
    loops, sinks = [new_loop(), new_loop()], Sinks()
    streams = [on_loop(loop, sinks) for loop in loops for _ in range(3)]
    blocking = new_stream(sinks=sinks)
    for stream in [*streams, blocking]:
        stream.put(GenerateEvent("a", (1,)))
    sinks.flush()
    assert [loop.calls for loop in loops] == [1, 1]
    assert next(iter(blocking)).text == "a"


def test_a_loop_that_is_busy_is_called_once_however_many_steps_pass(new_loop):
    loop, sinks = new_loop(), Sinks()
    stream = on_loop(loop, sinks)
    for _ in range(1000):
        stream.put(GenerateEvent("a", (1,)))
        sinks.flush()
    assert loop.calls == 1
    loop.turn()
    stream.put(GenerateEvent("a", (1,)))
    sinks.flush()
    assert loop.calls == 2


def test_requests_of_a_closed_loop_are_cancelled_and_the_others_served(new_loop):
    closed, living, sinks = new_loop(), new_loop(), Sinks()
    told = []
    orphans = [on_loop(closed, sinks, on_cancel=told.append) for _ in range(2)]
    stream = on_loop(living, sinks, on_cancel=told.append)
    closed.close()
    for each in (*orphans, stream):
        each.put(GenerateEvent("a", (1,)))
    sinks.flush()
    assert told == orphans
    assert living.calls == 1


def test_cancelling_from_many_threads_tells_the_engine_once():
    told = []
    stream = new_stream(on_cancel=told.append)
    gate = threading.Barrier(8)

    def cancel():
        gate.wait()
        stream.cancel()

    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [stream]
    assert stream.cancelled


def test_cancelling_what_has_ended_does_nothing():
    told = []
    stream = new_stream(on_cancel=told.append)
    stream.put(GenerateEvent("a", (1,), finish=finish()))
    stream.cancel()
    assert (told, stream.cancelled) == ([], False)


def test_leaving_an_iteration_cancels_the_request_at_once():
    told = []
    stream = new_stream(on_cancel=told.append)
    stream.put(GenerateEvent("a", (1,)))
    for event in StreamEvents(stream):
        assert event.text == "a"
        break
    assert told == [stream]


def test_dropping_an_iteration_that_never_began_cancels_the_request():
    told = []
    stream = new_stream(on_cancel=told.append)
    StreamEvents(stream)
    assert told == [stream]


def test_an_iteration_that_was_interrupted_cancels_though_it_is_held():
    told = []
    stream = new_stream(on_cancel=told.append)

    def interrupt():
        raise KeyboardInterrupt

    events = StreamEvents(stream)
    stream.take = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(events)
    assert told == [stream]


def test_an_iteration_to_the_end_cancels_nothing():
    told = []
    stream = new_stream(on_cancel=told.append)
    stream.put(GenerateEvent("a", (1,), finish=finish()))
    assert [event.text for event in StreamEvents(stream)] == ["a"]
    assert told == []
