from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import PlannedRow, chunk_length, plan_step, prefill_budget
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


def known_costs():
    """Decoding takes 10 ms for each row; a prompt 5 ms and 1 ms for each token."""
    costs = StepCosts()
    for rows in (1, 2):
        costs.observe(rows, 0, 0.010 * rows)
    for tokens in (16, 64):
        costs.observe(0, tokens, 0.005 + 0.001 * tokens)
    return costs


def test_prompt_tokens_stretch_a_step_only_so_far():
    assert prefill_budget(known_costs(), 4, 512, max_stretch=3) == 75


def test_a_prompt_gets_on_however_little_time_there_is():
    assert prefill_budget(known_costs(), 1, 512, max_stretch=1.5) == 16


def test_the_time_allowed_never_exceeds_the_tokens_allowed():
    assert prefill_budget(known_costs(), 4, 32, max_stretch=3) == 32


def test_nothing_is_held_back_while_costs_are_unknown():
    assert prefill_budget(StepCosts(), 4, 512, max_stretch=3) == 512


def test_a_scheduler_shortens_chunks_once_it_knows_what_steps_take():
    scheduler = Scheduler(4, 512, max_stretch=3)
    decoding, prompt = sequence(4, computed=4, generated=1), sequence(1000)
    for one in (decoding, prompt):
        scheduler.add(one)
        scheduler.admit()
    assert [row.num_tokens for row in scheduler.plan()] == [1, 512]
    for rows in (1, 1):
        scheduler.observe([PlannedRow(decoding, 1, samples=True)] * rows, 0.010)
    for tokens in (16, 64):
        scheduler.observe([PlannedRow(prompt, tokens, samples=False)], 0.001 * tokens)
    assert [row.num_tokens for row in scheduler.plan()] == [1, 20]
    scheduler.remove(decoding)
    assert [row.num_tokens for row in scheduler.plan()] == [512]
