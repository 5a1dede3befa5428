"""Serving in a simulation: a clock of its own, and replies that depend on every token before."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulation import Arrival, Clock, Simulation, run_together
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.policy import PolicyName
from tokenmill.scheduler.scheduler import Preemption


def padded(lengths):
    """Rows as long as the longest, kept twice, in blocks of eight."""
    return 2 * len(lengths) * -(-max(lengths, default=0) // 8) * 8


def bucketed(lengths):
    """Capacities that double."""
    return sum(1 << max(3, (length - 1).bit_length()) for length in lengths)


def paged(lengths):
    return sum(-(-length // 16) * 16 for length in lengths)


seldom = st.sampled_from([False] * 9 + [True])
arrivals = st.builds(
    Arrival,
    at=st.floats(0, 2, width=32),
    prompt=st.integers(1, 60),
    max_tokens=st.one_of(st.none(), st.integers(1, 40)),
    priority=st.integers(-1, 2),
    client=st.sampled_from("abc"),
    cancel_after=st.one_of(st.none(), st.none(), st.floats(0, 3, width=32)),
    timeout=st.one_of(st.none(), st.none(), st.floats(0.0625, 3, width=32)),
    fails_at=st.one_of(st.none(), st.none(), st.none(), st.integers(1, 60)),
    export_fails=seldom,
    import_fails=seldom,
)
engines = st.fixed_dictionaries(
    {
        "total": st.integers(1, 400),
        "policy": st.sampled_from(PolicyName),
        "preemption": st.sampled_from(Preemption),
        "max_rows": st.integers(1, 6),
        "max_context": st.sampled_from([64, 128]),
        "bytes_of": st.sampled_from([sum, padded, bucketed, paged]),
        "prefill_tokens": st.sampled_from([2, 5, 16, 64]),
        "max_stretch": st.sampled_from([None, 1.5, 3.0]),
        "decode_equals_prefill": st.booleans(),
        "growth_tokens": st.sampled_from([1, 7, 16]),
    }
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(arrivals, min_size=1, max_size=30), engines, st.sets(st.integers(1, 40), max_size=2)
)
def test_whatever_comes_in_the_accounts_are_right_and_everybody_ends_as_they_should(
    requests, engine, faults
):
    simulation = Simulation(requests, **engine)
    simulation.backend.backend_faults = faults
    simulation.run(limit=20_000)
    simulation.check_outcomes()
    assert simulation.scheduler.parks_alone == 0


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(arrivals, min_size=1, max_size=12), min_size=2, max_size=3),
    st.lists(engines, min_size=3, max_size=3),
    st.integers(60, 300),
    st.integers(0, 99),
)
def test_models_that_share_memory_all_come_to_an_end(crowds, fields, total, seed):
    budget, clock = MemoryBudget(total), Clock()
    simulations = [
        Simulation(requests, **{**engine, "budget": budget, "clock": clock})
        for requests, engine in zip(crowds, fields, strict=False)
    ]
    run_together(simulations, random.Random(seed).choice)
    for simulation in simulations:
        simulation.check_outcomes()
    assert budget.reserved == 0
