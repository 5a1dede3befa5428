import pytest

from tokenmill.scheduler.costs import StepCosts


def test_nothing_is_predicted_before_something_was_seen():
    costs = StepCosts()
    assert costs.decode_seconds(4) is None
    assert costs.prefill_tokens_within(1.0) is None


def test_decoding_is_a_line_over_the_rows():
    costs = StepCosts()
    for rows in (1, 2, 4):
        costs.observe(rows, 0, 0.008 + 0.002 * rows)
    assert costs.decode_seconds(8) == pytest.approx(0.024)


def test_prompt_tokens_are_counted_beyond_what_the_decoding_rows_take():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(4, 0, 0.020)
    for tokens in (16, 64):
        costs.observe(4, tokens, 0.020 + 0.010 + 0.001 * tokens)
    assert costs.prefill_tokens_within(0.050) == 40


def test_a_time_that_does_not_cover_the_fixed_part_holds_no_token():
    costs = StepCosts()
    for tokens in (16, 64):
        costs.observe(0, tokens, 0.010 + 0.001 * tokens)
    assert costs.prefill_tokens_within(0.005) == 0


def test_what_is_always_of_one_size_is_taken_to_grow_in_proportion():
    costs = StepCosts()
    for _ in range(3):
        costs.observe(0, 512, 0.512)
    assert costs.prefill_tokens_within(0.1) == 100


def test_a_machine_that_becomes_slower_is_noticed():
    costs = StepCosts()
    for factor in [1] * 30 + [3] * 40:
        for tokens in (16, 64):
            costs.observe(0, tokens, factor * (0.010 + 0.001 * tokens))
    assert costs.prefill_tokens_within(0.090) == pytest.approx(20, abs=1)


def test_a_mixed_step_tells_nothing_while_decoding_is_unknown():
    costs = StepCosts()
    for _ in range(5):
        costs.observe(4, 64, 0.1)
    assert costs.prefill_tokens_within(1.0) is None


def test_prompt_tokens_that_have_cost_nothing_for_long_are_not_bounded():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(2, 0, 0.5)
        costs.observe(0, 10, 0.5)
    # Each beside rows that alone were slower: what is left fades to the least number there is.
    for _ in range(6_900):
        costs.observe(2, 10, 0.1)
        assert costs.prefill_tokens_within(1.0) != 0
    assert costs.prefill_tokens_within(1.0) is None
