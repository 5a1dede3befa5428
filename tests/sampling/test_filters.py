import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tokenmill.sampling.filters import Candidates, min_p, top_k, top_p

rows = arrays(np.float64, st.integers(1, 60), elements=st.integers(-20, 20).map(lambda n: n / 2))


def candidates(values):
    return Candidates(np.arange(len(values), dtype=np.int64), np.asarray(values, dtype=np.float64))


def best_first(values):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def test_top_k_keeps_exactly_k_and_the_lower_id_on_a_tie():
    assert top_k(candidates([1, 5, 3, 3, 3]), 3).ids.tolist() == [1, 2, 3]


def test_top_k_zero_keeps_all():
    assert top_k(candidates([1, 2, 3]), 0).ids.tolist() == [0, 1, 2]


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    assert top_p(candidates(logits), 0.7).ids.tolist() == [0, 1]
    assert top_p(candidates(logits), 0.8).ids.tolist() == [0, 1, 2]


def test_min_p_compares_with_the_best_token():
    logits = np.log([0.5, 0.3, 0.2])
    assert min_p(candidates(logits), 0.5).ids.tolist() == [0, 1]


@given(rows, st.integers(1, 70))
def test_top_k_equals_its_definition(row, k):
    assert top_k(candidates(row), k).ids.tolist() == sorted(best_first(row)[:k])


@given(rows, st.floats(0.01, 1.0))
def test_top_p_equals_its_definition(row, p):
    weights = np.exp(row - row.max())
    order = best_first(row)
    reached = np.cumsum(weights[order])
    goal = p * weights.sum()
    assume(np.abs(reached - goal).min() > 1e-9 * goal)  # at the border, rounding decides
    count = next(n for n, mass in enumerate(reached, start=1) if mass >= goal)
    assert top_p(candidates(row), p).ids.tolist() == sorted(order[:count])


@given(rows, st.floats(0.001, 1.0))
def test_min_p_equals_its_definition(row, share):
    kept = [i for i in range(len(row)) if row[i] >= row.max() + np.log(share)]
    assert min_p(candidates(row), share).ids.tolist() == kept


def test_top_p_on_a_flat_row_of_a_large_vocabulary_sorts_it_whole():
    assert len(top_p(candidates(np.zeros(10_000)), 0.5).ids) == 5_000


def test_top_p_on_a_peaked_row_of_a_large_vocabulary_keeps_the_peak():
    row = np.full(10_000, -30.0)
    row[[17, 4711]] = 5.0
    assert top_p(candidates(row), 0.9).ids.tolist() == [17, 4711]
