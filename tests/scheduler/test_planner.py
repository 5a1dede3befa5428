from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.planner import chunk_length, plan_step
from tokenmill.scheduler.scheduler import Scheduler
from tokenmill.scheduler.sequence import Sequence


def sequence(prompt, computed=0, generated=0):
    made = Sequence("r", [1] * prompt)
    made.tokens += [2] * generated
    made.num_computed_tokens = computed
    return made


@given(st.integers(2, 500), st.integers(2, 64))
def test_chunks_cover_a_prompt_and_none_is_a_single_token(prompt, limit):
    left, chunks = prompt, []
    while left:
        chunks.append(chunk_length(left, limit))
        left -= chunks[-1]
    assert sum(chunks) == prompt
    assert min(chunks) >= 2
    assert max(chunks) <= max(limit, 3)


def test_a_prompt_of_one_token_is_one_chunk():
    assert chunk_length(1, 512) == 1


def test_decoding_sequences_all_take_part_and_prompts_share_the_budget():
    decoding, first, second = sequence(5, 5, 1), sequence(10), sequence(10)
    rows = plan_step([first, decoding, second], 12)
    assert [(r.sequence, r.num_tokens, r.samples) for r in rows] == [
        (first, 10, True),
        (decoding, 1, True),
        (second, 2, False),
    ]


def test_a_prompt_waits_when_the_budget_has_one_token_left():
    first, second = sequence(9), sequence(10)
    assert [row.sequence for row in plan_step([first, second], 10)] == [first]


def test_rows_are_admitted_in_order_of_arrival():
    scheduler = Scheduler(max_rows=2, prefill_tokens=8)
    one, two, three = sequence(1), sequence(1), sequence(1)
    for each in (one, two, three):
        scheduler.add(each)
    assert [scheduler.admit(), scheduler.admit(), scheduler.admit()] == [one, two, None]
    scheduler.remove(one)
    assert scheduler.admit() is three
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 0)
