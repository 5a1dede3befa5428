from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import chunk_length, plan_step, prefill_budget
from tokenmill.scheduler.prefill_costs import Chunk
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


def test_a_reply_that_is_computed_again_goes_token_by_token_and_draws_at_its_end():
    replayed = sequence(5, 5, 3)
    rows = [(r.num_tokens, r.samples, r.is_prefill) for r in plan_step([replayed], 12)]
    assert rows == [(1, False, False)]
    replayed.num_computed_tokens = 7
    assert [r.samples for r in plan_step([replayed], 12)] == [True]


def test_a_reply_that_is_computed_again_goes_in_chunks_where_that_makes_no_difference():
    replayed = sequence(5, 5, 4)
    rows = plan_step([replayed], 3, replays_in_chunks=True)
    assert [(r.num_tokens, r.samples, r.is_prefill) for r in rows] == [(2, False, True)]
    replayed.num_computed_tokens = 0
    rows = plan_step([replayed], 12, replays_in_chunks=True)
    assert [(r.num_tokens, r.samples) for r in rows] == [(9, True)]


def known_costs():
    """A row takes 10 ms; a chunk 5 ms, 1 ms for each token and 20 us for each of its past."""
    costs = StepCosts()
    for rows in (1, 2):
        costs.observe(rows, [], 0.010 * rows)
    for tokens, past in ((16, 0), (64, 0), (16, 2000), (64, 2000)):
        costs.observe(0, [Chunk(tokens, past)], 0.005 + 0.001 * tokens + 2e-5 * past)
    return costs


def budget(rows=4, past=0, tokens=512, stretch=3, quiet=0, costs=None):
    return prefill_budget(
        costs or known_costs(), rows, past, tokens, max_stretch=stretch, quiet_steps=quiet
    )


def test_prompt_tokens_stretch_a_step_only_so_far():
    assert budget() == 75
    assert budget(past=1000) == 55


def test_where_no_useful_chunk_fits_a_longer_one_goes_every_twelfth_step():
    assert [budget(past=3500, quiet=n) for n in (0, 10, 11)] == [0, 0, 485]
    assert budget(rows=1, past=20_000, quiet=11) == 16


def test_the_time_allowed_never_exceeds_the_tokens_allowed():
    assert budget(tokens=32) == 32
    assert budget(past=3500, tokens=32, quiet=11) == 32
    assert budget(tokens=4) == 4


def test_nothing_is_held_back_while_decoding_is_unknown():
    assert budget(costs=StepCosts()) == 512


def test_chunks_are_short_while_nothing_is_known_of_what_they_cost():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(1, [], 0.010)
    assert budget(costs=costs) == 64
