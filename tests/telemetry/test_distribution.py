import math
import random
from itertools import pairwise

import pytest

from tokenmill.telemetry.distribution import SECONDS, SIZES, Histogram


def of(values, bounds=SECONDS):
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    return histogram.read()


@pytest.mark.parametrize("bounds", [SECONDS, SIZES])
def test_bounds_rise_by_no_more_than_two(bounds):
    steps = [high / low for low, high in pairwise(bounds) if low]
    assert min(steps) > 1
    assert max(steps) <= 2


def test_times_reach_from_below_a_millisecond_to_a_minute():
    assert SECONDS[0] < 0.001 in SECONDS
    assert SECONDS[-1] == 60.0


def test_a_bound_belongs_to_the_bucket_below_it():
    counts = of([0, 1, 2, 3, 4, 5, 8192, 8193], SIZES).counts
    assert counts[:6] == (1, 1, 1, 1, 1, 1)
    assert counts[-2:] == (1, 1)
    assert len(counts) == len(SIZES) + 1


def test_count_sum_mean_and_both_ends_are_exact():
    found = of([0.25, 0.5, 3.0])
    assert (found.total, found.sum, found.mean) == (3, 3.75, 1.25)
    assert (found.minimum, found.maximum) == (0.25, 3.0)


def test_without_values_there_are_counts_and_nothing_else():
    found = of([])
    assert (found.total, found.sum, sum(found.counts)) == (0, 0, 0)
    assert (found.mean, found.minimum, found.maximum, found.estimate(0.5)) == (None,) * 4


def test_a_value_of_zero_is_a_value():
    found = of([0.0])
    assert (found.minimum, found.maximum, found.mean, found.estimate(0.5)) == (0, 0, 0, 0)


@pytest.mark.parametrize("value", [0.00003, 0.0123, 0.5, 75.0])
def test_one_value_is_its_own_estimate_in_every_bucket(value):
    found = of([value] * 3)
    assert [found.estimate(share) for share in (0.01, 0.5, 1.0)] == [value] * 3


def test_values_of_a_bucket_are_taken_to_lie_evenly_in_it():
    found = of([1.0, *[2.0] * 4, 5.0])  # the four are in (1.5, 2]
    assert found.estimate(3 / 6) == 1.75
    assert found.estimate(5 / 6) == 2.0


def test_above_all_bounds_the_largest_value_ends_the_bucket():
    found = of([1.0, 100.0, 100.0])
    assert found.estimate(2 / 3) == 80.0
    assert found.estimate(1.0) == 100.0


def test_estimates_of_sizes_are_whole_and_exact_where_a_bucket_holds_one_size():
    found = of([0, 1, 1, 1, 4, 4, 4, 4], SIZES)
    assert [found.estimate(share) for share in (1 / 8, 2 / 8, 4 / 8, 5 / 8, 1)] == [0, 1, 1, 4, 4]
    assert isinstance(found.estimate(0.5), int)


@pytest.mark.parametrize("seed", range(20))
def test_an_estimate_is_in_the_bucket_of_the_true_percentile(seed):
    random.seed(seed)
    values = sorted(math.exp(random.gauss(-4, 2)) for _ in range(random.randint(1, 400)))
    found = of(values)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        true = values[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
        low = max((bound for bound in SECONDS if bound < true), default=0)
        high = min((bound for bound in SECONDS if bound >= true), default=math.inf)
        assert low <= found.estimate(share) <= min(high, values[-1])


def test_what_was_read_does_not_change_any_more():
    histogram = Histogram(SIZES)
    histogram.add(2)
    before = histogram.read()
    histogram.add(3)
    assert (before.total, histogram.read().total) == (1, 2)


def test_as_plain_data_estimates_are_named_so():
    assert of([2, 2], SIZES).as_dict() == {
        "count": 2,
        "sum": 4,
        "mean": 2.0,
        "min": 2,
        "max": 2,
        "p50_estimate": 2,
        "p90_estimate": 2,
        "p99_estimate": 2,
        "bounds": list(SIZES),
        "counts": [0, 0, 2, *[0] * (len(SIZES) - 2)],
    }
