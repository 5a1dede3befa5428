import pytest

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.prefill_costs import Chunk


def test_nothing_is_predicted_before_something_was_seen():
    costs = StepCosts()
    assert costs.decode_seconds(4) is None
    assert costs.prefill_tokens_within(1.0, 0, 512) is None


def test_decoding_is_a_line_over_the_rows():
    costs = StepCosts()
    for rows in (1, 2, 4):
        costs.observe(rows, [], 0.008 + 0.002 * rows)
    assert costs.decode_seconds(8) == pytest.approx(0.024)


def test_chunks_take_what_is_beyond_the_decoding_rows():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(4, [], 0.020)
    for tokens in (16, 64):
        costs.observe(4, [Chunk(tokens, 0)], 0.020 + 0.010 + 0.001 * tokens)
    assert costs.prefill_tokens_within(0.050, 0, 512) == 40


def test_a_mixed_step_tells_nothing_while_decoding_is_unknown():
    costs = StepCosts()
    for _ in range(5):
        costs.observe(4, [Chunk(64, 0)], 0.1)
    assert costs.prefill_tokens_within(1.0, 0, 512) is None


def test_a_copy_is_made_twice():
    costs = StepCosts()
    costs.observe_copy(1_000_000, 0.001)
    assert costs.swap_seconds(5_000_000) == pytest.approx(0.010)


def test_a_replay_takes_its_chunks_and_a_row_more_for_each_generated_token():
    costs = StepCosts()
    for rows in (1, 2, 4):
        costs.observe(rows, [], 0.008 + 0.002 * rows)
    for tokens in (16, 64):
        costs.observe(0, [Chunk(tokens, 0)], 0.010 + 0.001 * tokens)
    assert costs.replay_seconds(40, 30, in_chunks=False) == pytest.approx(0.050 + 0.060, rel=1e-3)
    assert costs.replay_seconds(40, 30, in_chunks=True) == pytest.approx(0.080, rel=1e-3)


def test_a_replay_of_unknown_cost_is_unknown():
    assert StepCosts().replay_seconds(40, 0, in_chunks=False) is None
    assert StepCosts().replay_seconds(0, 30, in_chunks=False) is None
