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
)


def linear(lengths):
    return 10 * sum(lengths)


def capacity(total=1000, **fields):
    fields.setdefault("max_rows", 4)
    return Capacity(linear, total, **fields)


def decide(demand, *, running=(), position=0, available=1000, **fields):
    return admit(demand, running, position, available, capacity(**fields))


def test_what_fits_is_admitted_with_its_whole_length():
    assert decide(Demand(10, 20, False)) == Admitted(30, 20)


def test_an_open_request_holds_one_growth_step_at_first():
    assert decide(Demand(10, 80, True), growth_tokens=16) == Admitted(26, 80)


def test_an_open_request_never_holds_more_than_it_can_use():
    assert decide(Demand(10, 5, True), growth_tokens=16) == Admitted(15, 5)


def test_what_fits_an_empty_engine_only_is_queued_for_memory():
    assert decide(Demand(10, 60, False), running=[40], available=1000) == Queued(0, "memory")


def test_nobody_overtakes_those_who_wait():
    assert decide(Demand(1, 1, False), position=3) == Queued(3, "rows")


def test_all_rows_taken_is_queued_for_rows():
    assert decide(Demand(1, 1, False), running=[1, 1], max_rows=2) == Queued(0, "rows")


def test_a_ceiling_that_can_never_fit_is_lowered_to_the_largest_that_can():
    assert decide(Demand(30, 500, False)) == Capped(70)


def test_an_open_requests_ceiling_is_lowered_without_a_word():
    assert decide(Demand(30, 500, True), growth_tokens=10) == Admitted(40, 70)


def test_a_prompt_that_leaves_no_room_for_one_token_is_rejected_with_figures():
    found = decide(Demand(100, 1, False))
    assert isinstance(found, Rejected)
    assert (found.needed, found.available, found.knob) == (1010, 1000, "memory_budget")


def test_a_layout_that_pays_for_the_longest_row_is_asked_for_all_rows_together():
    padded = Capacity(lambda lengths: 2 * len(lengths) * max(lengths), 400, 4)
    assert admit(Demand(10, 10, False), [50], 0, 400, padded) == Admitted(20, 10)
    assert admit(Demand(10, 10, False), [50, 50, 50], 0, 400, padded) == Admitted(20, 10)
    assert admit(Demand(10, 41, False), [50, 50, 50], 0, 400, padded) == Queued(0, "memory")


@given(
    st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 3000),
    st.lists(st.integers(1, 100), max_size=6), st.integers(0, 3),
)  # fmt: skip
def test_every_demand_has_an_outcome_that_keeps_within_the_budget(
    prompt, tokens, is_open, total, running, position
):
    demand, room = Demand(prompt, tokens, is_open), capacity(total)
    outcome = admit(demand, running, position, total, room)
    judged = judge(demand, room)
    if isinstance(outcome, Admitted):
        assert linear([*running, outcome.length]) <= total
        assert 1 <= outcome.max_tokens <= tokens
        assert prompt < outcome.length <= demand.length
    elif isinstance(outcome, Capped):
        assert linear([prompt + outcome.max_tokens]) <= total
        assert linear([prompt + outcome.max_tokens + 1]) > total
    elif isinstance(outcome, Queued):
        assert linear([prompt + judged.max_tokens]) <= total
    else:
        assert linear([prompt + 1]) > total
