import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.admission import (
    Admitted,
    Capacity,
    Capped,
    Demand,
    Queued,
    Rejected,
    admit,
    judge,
    starting_length,
)


def linear(lengths):
    return 10 * sum(lengths)


def padded(lengths):
    return 2 * len(lengths) * max(lengths, default=0)


def capacity(total=1000, **fields):
    fields.setdefault("max_rows", 4)
    return Capacity(linear, total, **fields)


def test_what_fits_an_empty_engine_is_left_as_it_is():
    assert judge(Demand(10, 90, False), capacity()) is None


def test_a_ceiling_that_can_never_fit_is_lowered_to_the_largest_that_can():
    assert judge(Demand(30, 71, False), capacity()) == Capped(70)
    assert judge(Demand(30, 500, True), capacity()) == Capped(70)
    assert judge(Demand(99, 500, False), capacity()) == Capped(1)


def test_a_prompt_that_leaves_no_room_for_one_token_is_rejected_with_figures():
    found = judge(Demand(100, 1, False), capacity())
    assert found == Rejected(
        "100 tokens of prompt and one of reply need 1,010 bytes of state, and there are 1,000",
        1010, 1000, "memory_budget",
    )  # fmt: skip


def test_a_request_that_names_a_number_holds_all_of_it_from_the_start():
    assert starting_length(Demand(10, 20, False), 10, capacity()) == 30
    assert starting_length(Demand(10, 20, False), 25, capacity()) == 30


def test_an_open_request_holds_one_growth_step_beyond_what_is_known():
    room = capacity(growth_tokens=16)
    assert starting_length(Demand(10, 80, True), 10, room) == 26
    assert starting_length(Demand(10, 80, True), 60, room) == 76


def test_an_open_request_never_holds_more_than_it_can_use():
    assert starting_length(Demand(10, 5, True), 10, capacity(growth_tokens=16)) == 15


def test_what_fits_beside_those_who_run_is_admitted():
    assert admit(60, [40], 0, 1000, capacity()) == Admitted(60)


def test_what_fits_an_empty_engine_only_is_queued_for_memory():
    assert admit(61, [40], 0, 1000, capacity()) == Queued(0, "memory")


def test_what_other_models_hold_is_not_there():
    assert admit(60, [40], 0, 999, capacity()) == Queued(0, "memory")


def test_nobody_overtakes_those_who_wait():
    assert admit(1, [], 3, 1000, capacity()) == Queued(3, "memory")


def test_all_rows_taken_is_queued_for_rows():
    assert admit(1, [1, 1], 5, 1000, capacity(max_rows=2)) == Queued(5, "rows")


def test_a_layout_that_pays_for_the_longest_row_is_asked_for_all_rows_together():
    room = Capacity(padded, 400, 4)
    assert admit(20, [50, 50, 50], 0, 400, room) == Admitted(20)
    assert admit(51, [50, 50, 50], 0, 400, room) == Queued(0, "memory")


@pytest.mark.parametrize("bytes_of", [linear, padded])
@given(st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 3000))
def test_every_demand_can_run_as_asked_or_capped_to_the_most_that_fits_or_never(
    bytes_of, prompt, tokens, is_open, total
):
    demand = Demand(prompt, tokens, is_open)
    match judge(demand, Capacity(bytes_of, total, 4)):
        case None:
            assert bytes_of([demand.length]) <= total
        case Capped(most):
            assert 1 <= most < tokens
            assert bytes_of([prompt + most]) <= total < bytes_of([prompt + most + 1])
        case Rejected(needed=needed):
            assert needed == bytes_of([prompt + 1]) > total


@pytest.mark.parametrize("bytes_of", [linear, padded])
@given(
    st.integers(1, 200), st.lists(st.integers(1, 100), max_size=6), st.integers(0, 3),
    st.integers(0, 3000),
)  # fmt: skip
def test_who_is_admitted_fits_into_rows_and_memory(bytes_of, length, running, position, available):
    outcome = admit(length, running, position, available, Capacity(bytes_of, 3000, 4))
    fits = len(running) < 4 and bytes_of([*running, length]) <= available
    assert isinstance(outcome, Admitted) == (fits and position == 0)
