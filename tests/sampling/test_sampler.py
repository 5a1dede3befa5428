import numpy as np
import pytest

from tokenmill.core.errors import BackendError
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.sampling.sampler import sample


def row(*values):
    return np.array(values, dtype=np.float32)


def test_e24_greedy_takes_the_lowest_id_of_equal_logits():
    logits = np.zeros(12, dtype=np.float32)
    logits[[5, 9]] = 3.0
    assert sample(logits, SamplingParams(temperature=0), position=4) == 5


def test_one_seed_gives_one_token_whatever_else_is_drawn():
    logits = np.random.default_rng(3).standard_normal(500).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=11)
    first = [sample(logits, params, position=p) for p in range(20)]
    again = [sample(logits, params, position=p) for p in reversed(range(20))]
    assert first == again[::-1]
    assert len(set(first)) > 5


def test_draws_follow_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    draws = 20_000
    counts = np.zeros(4)
    for position in range(draws):
        counts[sample(logits, SamplingParams(temperature=1.0, seed=5), position=position)] += 1
    expected = probabilities * draws
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001


def test_temperature_sharpens():
    logits = row(1.0, 0.0)
    params = SamplingParams(temperature=0.05, seed=1)
    assert {sample(logits, params, position=p) for p in range(200)} == {0}


def test_filters_limit_what_is_drawn():
    logits = row(3.0, 2.9, 2.8, -1.0)
    params = SamplingParams(temperature=5.0, top_k=3, min_p=0.01, seed=1)
    assert {sample(logits, params, position=p) for p in range(200)} == {0, 1, 2}


def test_the_row_is_not_modified():
    logits = row(1.0, 2.0, 3.0)
    sample(logits, SamplingParams(temperature=0.5, top_p=0.9, seed=1), position=0)
    assert logits.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_an_error(bad):
    with pytest.raises(BackendError, match="not finite"):
        sample(row(1.0, bad, 0.0), SamplingParams(temperature=0), position=7)
