"""Many requests, a bounded number of them at a time."""

import pytest

from support.hand_engine import HandEngine
from tokenmill.core.errors import BackendError, InvalidRequest
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.batch import Batch, run_batch, window_of
from tokenmill.engine.signals import ThreadSignal


def requests(*prompts):
    return [GenerateRequest(prompt) for prompt in prompts]


def run(engine, asked, window=8, **options):
    reports = []
    results = run_batch(
        engine.submit, asked, window=window,
        report=lambda *figures: reports.append(figures), **options,
    )  # fmt: skip
    return results, reports


def test_two_thousand_prompts_keep_their_order_within_the_window():
    with HandEngine(max_rows=4).running() as engine:
        asked = requests(*([n, 1 + n % 7] for n in range(2000)))
        results, reports = run(engine, asked)
    assert [r.token_ids for r in results] == [(n,) * (1 + n % 7) for n in range(2000)]
    assert engine.most <= 8
    assert reports[-1] == (2000, sum(1 + n % 7 for n in range(2000)))
    assert engine.cancelled == []


def test_a_long_reply_holds_up_no_others():
    engine = HandEngine(max_rows=4)
    asked = requests([0, 500], *([n, 2] for n in range(1, 50)))
    batch = Batch(engine.submit, asked, window=8, signal=ThreadSignal())
    while batch.num_done < 49:
        batch.fill()
        engine.step()
        batch.collect()
    assert engine.ended == list(range(1, 50))
    assert engine.most == 8


def test_the_first_error_ends_the_others_and_is_raised():
    error = BackendError("the third fails")
    with HandEngine(max_rows=4, errors={3: error}).running() as engine:
        with pytest.raises(BackendError) as raised:
            run(engine, requests(*([n, 10**9] for n in range(2000))))
        assert raised.value is error
    assert set(engine.cancelled) == {0, 1, 2, 4, 5, 6, 7}
    assert set(engine.ended) == set(range(8))


def test_a_request_that_cannot_run_ends_those_before_it():
    error = InvalidRequest("no")
    asked = requests(*([n, 10**9] for n in range(1, 9)))
    with HandEngine(errors={-5: error}).running() as engine, pytest.raises(InvalidRequest):
        run(engine, asked)
    assert engine.cancelled == [1, 2, 3, 4]


def test_an_interrupt_ends_all_that_runs():
    def interrupt(done, tokens):
        raise KeyboardInterrupt

    asked = requests([1, 10**9], [2, 10**9])
    with HandEngine().running() as engine, pytest.raises(KeyboardInterrupt):
        run_batch(engine.submit, asked, window=8, report=interrupt)
    assert sorted(engine.cancelled) == [1, 2]


def test_a_queue_smaller_than_the_window_is_never_told_to_the_caller():
    with HandEngine(max_rows=2, max_queue=3).running() as engine:
        results, _ = run(engine, requests(*([n, 2] for n in range(20))))
    assert [r.token_ids for r in results] == [(n, n) for n in range(20)]


def test_a_queue_full_of_others_is_tried_again_after_the_time_it_tells():
    engine = HandEngine(max_queue=1)
    (other,) = requests([1, 1])
    engine.submit(other)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        engine.step()  # the other one ends

    def submit(request):
        stream = engine.submit(request)
        engine.step()
        return stream

    results = run_batch(
        submit, requests([2, 1]), window=4, report=lambda done, tokens: None, sleep=sleep
    )
    assert slept == [7.0]
    assert results[0].token_ids == (2,)


def test_a_full_queue_is_tried_again_only_when_one_of_ours_has_ended():
    engine = HandEngine(max_rows=2, max_queue=2)
    batch = Batch(engine.submit, requests([1, 2], [2, 3], [3, 1]), window=8, signal=ThreadSignal())
    assert batch.fill() == 0
    engine.step()
    batch.collect()
    assert not batch.wants_more
    engine.step()
    batch.collect()
    assert batch.wants_more


def test_what_is_handed_over_while_the_batch_is_cancelled_is_cancelled_too():
    engine = HandEngine()

    def submit(request):
        stream = engine.submit(request)
        batch.cancel()
        return stream

    batch = Batch(submit, requests([1, 9], [2, 9]), window=8, signal=ThreadSignal())
    batch.fill()
    assert engine.cancelled == [1]
    assert len(engine.live) == 1


def test_as_many_wait_as_can_end_in_one_step():
    assert window_of(8) == 16
