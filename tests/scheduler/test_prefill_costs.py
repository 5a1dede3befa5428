import pytest

from tokenmill.scheduler.prefill_costs import Chunk, PrefillCosts


def cost(tokens, past):
    """5 ms, 10 us for each token of the past, 2 ms for each new one, 1 us for each pair."""
    return 0.005 + 1e-5 * past + 0.002 * tokens + 1e-6 * tokens * (past + tokens / 2)


def learnt(*chunks):
    costs = PrefillCosts()
    for chunk in chunks:
        costs.observe([Chunk(*chunk)], cost(*chunk))
    return costs


def test_nothing_is_known_from_one_observation():
    assert not learnt((16, 0)).is_known
    assert learnt((16, 0), (32, 0)).is_known


def test_the_four_parts_are_told_apart():
    costs = learnt((16, 0), (128, 0), (16, 2000), (128, 2000), (64, 1000))
    assert costs.seconds([Chunk(300, 4000)]) == pytest.approx(cost(300, 4000))


def test_chunks_of_one_step_add_up():
    costs = PrefillCosts()
    for one, other in [((16, 0), (32, 0)), ((8, 900), (100, 50)), ((64, 0), (2, 3000))]:
        costs.observe([Chunk(*one), Chunk(*other)], cost(*one) + cost(*other))
    costs.observe([Chunk(200, 100)], cost(200, 100))
    assert costs.seconds([Chunk(50, 500)]) == pytest.approx(cost(50, 500))


def test_tokens_within_a_time_are_those_that_the_prediction_allows():
    costs = learnt((16, 0), (128, 0), (16, 2000), (128, 2000), (64, 1000))
    assert costs.tokens_within(cost(40, 3000), 3000, 512) == 40
    assert costs.tokens_within(0.001, 3000, 512) == 0
    assert costs.tokens_within(100.0, 3000, 512) == 512


def test_what_is_always_of_one_size_is_taken_to_grow_nearly_in_proportion():
    costs = learnt((512, 0), (512, 0))
    assert costs.seconds([Chunk(512, 0)]) == pytest.approx(cost(512, 0))
    assert costs.seconds([Chunk(256, 0)]) == pytest.approx(cost(512, 0) / 2, rel=0.1)


def test_how_costs_grow_is_not_forgotten_while_all_chunks_are_of_one_size():
    costs = learnt((16, 0), (128, 0), (16, 2000), (128, 2000))
    for _ in range(500):
        costs.observe([Chunk(20, 500)], cost(20, 500))
    assert costs.seconds([Chunk(300, 3000)]) == pytest.approx(cost(300, 3000))


def test_a_machine_that_becomes_slower_is_noticed():
    costs = learnt((16, 0), (64, 0))
    for _ in range(10):
        for chunk in ((16, 0), (64, 0)):
            costs.observe([Chunk(*chunk)], 3 * cost(*chunk))
    assert costs.seconds([Chunk(32, 0)]) == pytest.approx(3 * cost(32, 0), rel=0.02)


def test_no_part_becomes_negative():
    costs = PrefillCosts()
    costs.observe([Chunk(16, 0)], 0.030)
    costs.observe([Chunk(64, 0)], 0.010)  # noise: more took less
    assert costs.seconds([Chunk(1, 0)]) >= 0
    assert costs.seconds([Chunk(512, 4000)]) >= costs.seconds([Chunk(256, 0)])
