"""Events on their way from the engine to a reader."""

import threading

import pytest

from tokenmill.core.errors import BackendError
from tokenmill.core.events import Finish, FinishReason, GenerateEvent, Usage
from tokenmill.core.ids import RequestId
from tokenmill.engine.streams import RequestStream
from tokenmill.telemetry.timeline import Timeline


def new_stream():
    return RequestStream(RequestId("r"), Timeline("r"))


def finish(error=None):
    return Finish(FinishReason.LENGTH, Usage(1, 1), "", error)


def test_events_that_wait_are_joined_into_one():
    stream = new_stream()
    stream.put(GenerateEvent("a", (1,)))
    stream.put(GenerateEvent("b", (2,)))
    stream.put(GenerateEvent("c", (3,), finish=finish()))
    events = list(stream)
    assert [(event.text, event.token_ids) for event in events] == [("abc", (1, 2, 3))]
    assert events[0].finish == finish()


def test_an_event_is_readable_as_soon_as_it_is_there():
    stream = new_stream()
    events = iter(stream)
    for token in range(5):
        stream.put(GenerateEvent("x", (token,)))
        assert next(events).token_ids == (token,)


def test_a_reader_that_races_the_engine_gets_every_event_once_and_in_order():
    stream = new_stream()
    count = 20_000

    def write():
        for token in range(count):
            stream.put(GenerateEvent("", (token,)))
        stream.put(GenerateEvent("", (), finish=finish()))

    writer = threading.Thread(target=write)
    writer.start()
    read = [token for event in stream for token in event.token_ids]
    writer.join()
    assert read == list(range(count))


def test_an_error_is_raised_after_the_text_before_it():
    stream = new_stream()
    error = BackendError("a step failed")
    stream.put(GenerateEvent("a", (1,)))
    stream.put(GenerateEvent("", (), finish=finish(error)))
    events = iter(stream)
    assert next(events).text == "a"
    with pytest.raises(BackendError) as raised:
        next(events)
    assert raised.value is error
