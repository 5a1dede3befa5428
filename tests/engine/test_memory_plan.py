"""The plan, over ten bytes a token where nothing else is said."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.engine.memory_plan import (
    Bound,
    Fit,
    Knob,
    knobs,
    margin_bytes,
    plan_memory,
    state_budget,
)
from tokenmill.scheduler.admission import Capacity

MIB = 2**20
GIB = 2**30


def linear(lengths):
    return 10 * sum(lengths)


def padded(lengths):
    """As where past and present are padded to the longest."""
    return 2 * 10 * len(lengths) * max(lengths, default=0)


def recurrent(lengths):
    return sum(5000 + length for length in lengths)


def plan_of(total, *, bytes_of=linear, max_rows=4, max_context=8192, **facts):
    facts = {"weights": 0, "available": None, "is_measured": True} | facts
    return plan_memory(Capacity(bytes_of, total, max_rows), max_context, **facts)


@pytest.mark.parametrize(
    ("available", "margin", "budget"),
    [
        (20 * GIB, 2 * GIB, 18 * GIB),
        (2560 * MIB, 256 * MIB, 2304 * MIB),
        (1000 * MIB, 256 * MIB, 744 * MIB),
        (100 * MIB, 256 * MIB, 0),
    ],
)
def test_the_margin_is_a_tenth_and_at_least_256_mib(available, margin, budget):
    assert margin_bytes(available) == margin
    assert state_budget(available) == budget


def test_lengths_are_the_usual_ones_and_the_context():
    assert [fit.tokens for fit in plan_of(0, max_context=10_000).fits] == [512, 2048, 8192, 10_000]
    assert [fit.tokens for fit in plan_of(0, max_context=2048).fits] == [512, 2048]
    assert [fit.tokens for fit in plan_of(0, max_context=64).fits] == [64]


def test_memory_is_the_bound_where_it_ends_before_the_rows():
    plan = plan_of(3 * 5120 + 100, max_context=512)
    assert plan.fits == (Fit(512, 5120, 3, Bound.MEMORY, 3),)


def test_rows_are_the_bound_where_memory_has_room_for_more():
    plan = plan_of(5 * 5120, max_context=512)
    assert plan.fits == (Fit(512, 5120, 4, Bound.ROWS, 5),)


def test_both_are_the_bound_where_they_end_together():
    plan = plan_of(4 * 5120, max_context=512)
    assert plan.fits == (Fit(512, 5120, 4, Bound.BOTH, 4),)


def test_not_even_one_request_may_fit():
    plan = plan_of(1005, max_context=512)
    assert plan.fits == (Fit(512, 5120, 0, Bound.MEMORY, 0),)
    assert (plan.longest, plan.even_context) == (100, 25)


def test_nothing_fits_into_no_memory():
    plan = plan_of(0)
    assert [fit.at_once for fit in plan.fits] == [0, 0, 0]
    assert (plan.longest, plan.even_context, plan.one_more) == (0, 0, 81920)


def test_padded_layouts_pay_for_the_longest():
    plan = plan_of(100_000, bytes_of=padded, max_context=2048)
    assert plan.fits == (
        Fit(512, 10240, 4, Bound.ROWS, 9),
        Fit(2048, 40960, 2, Bound.MEMORY, 2),
    )
    assert (plan.full_bytes, plan.one_more) == (163840, 22880)
    assert (plan.longest, plan.even_context) == (2048, 1250)


def test_state_that_every_request_has_counts_at_every_length():
    plan = plan_of(20_000, bytes_of=recurrent, max_context=2048)
    assert plan.fixed_bytes == 5000
    assert [fit.bytes_each for fit in plan.fits] == [5512, 7048]
    assert plan.fits[0].bytes_per_token == 5512 / 512
    assert plan_of(20_000).fixed_bytes == 0


def test_what_stays_free_when_all_is_taken():
    assert plan_of(1000, available=1500).spare == 500
    assert plan_of(1000, available=800).spare == -200
    assert plan_of(1000, available=None).spare is None


def test_more_rows_where_memory_has_room():
    assert knobs(plan_of(90 * 81920)) == (
        Knob("max_rows", 90, "memory has room for 90 requests of 8,192 tokens"),
    )


def test_counting_rows_ends():
    assert knobs(plan_of(10**12)) == (
        Knob("max_rows", 1024, "memory has room for 1,024 and more requests of 8,192 tokens"),
    )


def test_rows_are_counted_past_the_end_where_there_are_so_many():
    plan = plan_of(10**12, max_rows=2000)
    assert plan.fits[-1] == Fit(8192, 81920, 2000, Bound.ROWS, 2001)


def test_short_requests_want_rows_where_long_ones_want_memory():
    found = {knob.name: knob for knob in knobs(plan_of(110_000))}
    assert [*found] == ["max_rows", "memory", "max_context"]
    assert found["max_rows"] == Knob(
        "max_rows", 5, "memory has room for 5 requests of 2,048 tokens"
    )


def test_a_configured_budget_can_be_raised_up_to_what_is_there():
    plan = plan_of(100_000, is_measured=False, available=10 * GIB)
    assert knobs(plan)[-2:] == (
        Knob("memory_budget", 163_840, "62.3 KiB more for 2 requests of 8,192 tokens at once"),
        Knob("max_context", 2500, "4 requests of at most 2,500 tokens fit at once"),
    )
    unknown = replace(plan, available=None)
    assert knobs(unknown) == knobs(plan)


@pytest.mark.parametrize("facts", [{"is_measured": True}, {"is_measured": False}])
def test_memory_that_is_not_there_is_no_option(facts):
    effect = "62.3 KiB more than this process can take for 2 requests of 8,192 tokens at once"
    assert Knob("memory", None, effect) in knobs(plan_of(100_000, available=100_000, **facts))


def test_a_row_and_memory_where_both_end():
    plan = plan_of(4 * 5120, max_context=512, is_measured=False)
    effect = "5.0 KiB more, and one more row, for 5 requests of 512 tokens at once"
    assert knobs(plan) == (Knob("memory_budget", 5 * 5120, effect),)


def test_smaller_weights_where_they_would_make_room():
    effect = "half of the weights' 127.0 KiB would be room enough for that"
    precision = Knob("precision", None, effect)
    assert knobs(plan_of(100_000, weights=130_000))[-1] == precision
    assert precision not in knobs(plan_of(100_000, weights=130_000, is_measured=False))
    assert "precision" not in [knob.name for knob in knobs(plan_of(100_000, weights=127_000))]


def test_a_context_of_no_tokens_is_not_offered():
    assert [knob.name for knob in knobs(plan_of(20))] == ["memory"]


def test_rows_that_cannot_be_added_are_not_offered():
    assert knobs(plan_of(10**9, max_rows=1, can_add_rows=False)) == ()
    assert knobs(plan_of(5120, max_rows=1, max_context=512, can_add_rows=False)) == ()
    found = knobs(plan_of(20_000, max_rows=1, can_add_rows=False))
    assert found == (
        Knob(
            "memory",
            None,
            "60.5 KiB more than this process can take for 1 request of 8,192 tokens at once",
        ),
        Knob("max_context", 2000, "1 request of at most 2,000 tokens fits"),
    )


def test_of_more_memory_than_there_is_nothing_is_offered():
    assert knobs(plan_of(1000, is_measured=False, available=999)) == ()
    assert knobs(plan_of(1000, is_measured=False, available=1000)) != ()


def test_no_bound_where_the_system_does_not_say_what_it_has():
    assert not plan_of(sys.maxsize).is_bounded
    assert plan_of(sys.maxsize - 1).is_bounded


@given(
    st.integers(0, 2_000_000),
    st.integers(1, 40),
    st.integers(1, 9000),
    st.sampled_from([linear, padded, recurrent]),
)
def test_what_is_said_to_fit_fits_and_one_more_does_not(total, max_rows, max_context, bytes_of):
    plan = plan_of(total, bytes_of=bytes_of, max_rows=max_rows, max_context=max_context)
    for fit in plan.fits:
        assert bytes_of([fit.tokens] * fit.at_once) <= total
        assert fit.at_once <= max_rows
        too_large = bytes_of([fit.tokens] * (fit.at_once + 1)) > total
        assert too_large == (fit.bound is not Bound.ROWS)
    full = plan.fits[-1]
    if plan.one_more:
        assert bytes_of([max_context] * (full.at_once + 1)) == total + plan.one_more
    assert bytes_of([plan.even_context] * max_rows) <= total or plan.even_context == 0
    if plan.even_context < max_context:
        assert bytes_of([plan.even_context + 1] * max_rows) > total
    for knob in knobs(plan):
        if knob.name == "max_rows":
            assert knob.value > max_rows
