"""Serving in a simulation: a clock of its own, and replies that depend on every token before."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulation import Arrival, Clock, Simulation, run_together
from tokenmill.core.errors import OutOfMemory
from tokenmill.core.events import FinishReason
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.policy import PolicyName
from tokenmill.scheduler.scheduler import Preemption

AGEING = 10.0
"""Seconds that weigh as much as a step of priority, in policies as they are made by name."""


def padded(lengths):
    """Rows as long as the longest, kept twice, in blocks of eight."""
    return 2 * len(lengths) * -(-max(lengths, default=0) // 8) * 8


def bucketed(lengths):
    """Capacities that double."""
    return sum(1 << max(3, (length - 1).bit_length()) for length in lengths)


def paged(lengths):
    return sum(-(-length // 16) * 16 for length in lengths)


def by_arrival(sequence, now):
    return sequence.order


def by_aged_priority(sequence, now):
    return -(sequence.priority + (sequence.waited + now - sequence.waiting_since) / AGEING)


WAIT_ORDER = {PolicyName.FIRST_COME: by_arrival, PolicyName.PRIORITY: by_aged_priority}
"""Who may start before whom, which bounds how long anybody waits: by first_come, until all who
came before have started; by priority, until all those have who came before it was raised above
them, which is after AGEING seconds for each step of priority between them."""


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


@settings(deadline=None, max_examples=250)
@given(
    st.lists(arrivals, min_size=1, max_size=30), engines, st.sets(st.integers(1, 40), max_size=2)
)
def test_whatever_comes_in_the_accounts_are_right_and_everybody_ends_as_they_should(
    requests, engine, faults
):
    simulation = Simulation(requests, **engine, wait_order=WAIT_ORDER.get(engine["policy"]))
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


def test_ten_thousand_requests_all_end_as_they_should():
    chance = random.Random(1)
    times = itertools.accumulate(chance.expovariate(60) for _ in range(10_000))
    requests = [
        Arrival(
            at, chance.randint(1, 30), chance.choice([None, 1, 4, 16]),
            priority=chance.choice([-1, 0, 0, 1]), client=chance.choice("abcd"),
            cancel_after=chance.choice([None, None, None, 4 * chance.random()]),
            timeout=chance.choice([None, None, None, 4 * chance.random() + 0.01]),
            fails_at=chance.choice([None] * 20 + [20]),
        )
        for at in times
    ]  # fmt: skip
    simulation = Simulation(requests, total=600, max_rows=16, check_every=50).run()
    simulation.check_outcomes()
    reasons = {one.reason for one in simulation.outcomes}
    assert reasons == set(FinishReason) - {
        FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.CONTEXT,
    }  # fmt: skip
    assert set(simulation.engine.metrics.snapshot().preemptions) == {"swap", "replay"}


@pytest.mark.parametrize("preemption", Preemption)
@pytest.mark.parametrize("in_chunks", [True, False])
@pytest.mark.parametrize("growth", [4, 16, 128])
def test_eight_open_requests_with_memory_for_three_do_not_thrash(preemption, in_chunks, growth):
    requests = [Arrival(0, 20, None)] * 8
    simulation = Simulation(
        requests, total=3 * 400, max_context=400, max_rows=8, eos=-1, preemption=preemption,
        decode_equals_prefill=in_chunks, growth_tokens=growth,
    ).run()  # fmt: skip
    simulation.check_outcomes()
    assert {one.reason for one in simulation.outcomes} == {FinishReason.CONTEXT}
    figures = simulation.engine.metrics.snapshot()
    assert figures.generated_tokens == 8 * 380
    assert 0 < figures.replayed_tokens <= figures.generated_tokens


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([8, 50]), st.sampled_from(PolicyName), st.sampled_from(Preemption),
    st.sampled_from([4, 16, 128]), st.booleans(), st.integers(1, 60), st.integers(0, 10**6),
)  # fmt: skip
def test_open_requests_of_any_length_do_not_thrash(
    count, policy, preemption, growth, in_chunks, prompt, seed
):
    chance = random.Random(seed)
    requests = [Arrival(chance.random(), chance.randint(1, prompt), None) for _ in range(count)]
    simulation = Simulation(
        requests, total=3 * 300, max_context=300, max_rows=8, vocab_size=200, policy=policy,
        preemption=preemption, decode_equals_prefill=in_chunks, growth_tokens=growth, seed=seed,
        check_every=20,
    ).run()  # fmt: skip
    simulation.check_outcomes()
    figures = simulation.engine.metrics.snapshot()
    assert figures.replayed_tokens <= figures.generated_tokens


def test_two_clients_that_wait_are_served_alike_however_much_one_sends():
    requests = [Arrival(0.001 * i, 20, 12, client="busy") for i in range(400)]
    requests += [Arrival(0.2 + 0.001 * i, 20, 12, client="modest") for i in range(40)]
    simulation = Simulation(requests, policy=PolicyName.FAIR, eos=-1)
    served, leads = simulation.scheduler.served_tokens, []

    def look():
        if {sequence.client for sequence in simulation.policy} == {"busy", "modest"}:
            leads.append(served["busy"] - served["modest"])

    simulation.run(after_step=look)
    assert len(leads) > 50
    batch = 4 * (20 + 12)  # all rows, each with the longest request
    assert max(abs(lead - leads[0]) for lead in leads) <= batch


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.builds(
            Arrival, st.floats(0, 3, width=32), st.integers(1, 30),
            st.one_of(st.none(), st.integers(1, 30)), priority=st.integers(0, 1),
            client=st.sampled_from("abcd"),
        ),
        min_size=20, max_size=80,
    ),
    st.integers(1, 4), st.integers(80, 300), st.sampled_from(Preemption),
)  # fmt: skip
def test_clients_that_wait_at_once_are_served_alike_whoever_comes_and_goes(
    requests, rows, total, preemption
):
    simulation = Simulation(
        requests, policy=PolicyName.FAIR, max_rows=rows, total=total, preemption=preemption,
        max_context=80,
    )  # fmt: skip
    served, leads = simulation.scheduler.served_tokens, {}

    def look():
        waiting = sorted({sequence.client for sequence in simulation.policy})
        for pair in itertools.combinations("abcd", 2):
            if set(pair) <= set(waiting):
                leads.setdefault(pair, []).append(served[pair[0]] - served[pair[1]])
            elif found := leads.pop(pair, None):
                # Counters that differ by at most a batch, from the beginning to the end.
                assert max(found) - min(found) <= 2 * rows * 80

    simulation.run(after_step=look)
    simulation.check_outcomes()


def low_and_high(preemption, **high):
    low = [Arrival(0, 10, 100) for _ in range(4)]
    simulation = Simulation(
        [*low, Arrival(**{"at": 0.2, "prompt": 10, "max_tokens": 5, **high})],
        eos=-1, preemption=preemption, wait_order=by_aged_priority,
    )  # fmt: skip
    simulation.run()
    simulation.check_outcomes()
    return simulation.outcomes, simulation.engine.metrics.snapshot()


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.REPLAY])
def test_a_higher_priority_starts_with_the_next_step(preemption):
    (*low, high), figures = low_and_high(preemption, priority=1)
    longest_step = 0.010 + 4 * 0.001
    assert high.started - high.arrival.at <= longest_step
    assert figures.preemptions == {preemption.value: 1}
    parked = [[span.name for span in one.prepared.timeline.spans].count("parked") for one in low]
    assert parked == [0, 0, 0, 1]  # who came last of the lowest


def test_an_equal_priority_waits_its_turn():
    (*low, late), figures = low_and_high(Preemption.SWAP, priority=0)
    assert late.started >= min(one.ended for one in low)
    assert figures.preemptions == {}


@pytest.mark.parametrize("preemption", Preemption)
@pytest.mark.parametrize("difference", [1, 2])
def test_a_low_priority_does_not_starve_under_a_steady_stream_of_higher_ones(
    preemption, difference
):
    # A row takes 0.26 s for a request: two rows serve 7.7 a second, and 12 come in.
    high = [Arrival(0.08 * i, 10, 20, priority=difference) for i in range(500)]
    low = Arrival(1.0, 10, 100)
    simulation = Simulation(
        [*high, low], eos=-1, max_rows=2, preemption=preemption, wait_order=by_aged_priority,
        decode_equals_prefill=False,
    ).run()  # fmt: skip
    simulation.check_outcomes()
    *others, found = simulation.outcomes
    raised = found.arrival.at + AGEING * difference
    before = [one for one in others if one.arrival.at < raised]
    assert len(before) < 400, "the stream goes on"
    # It starts when those have who came before it was raised above them, and is not parked then.
    assert found.started <= max(one.started for one in before) + 0.3
    assert found.ended - found.started <= 100 * 0.05


def test_a_request_that_was_parked_for_higher_ones_is_not_parked_for_ever():
    # Low ones run from the beginning, and lose their rows again and again.
    low = [Arrival(0, 10, 200) for _ in range(2)]
    high = [Arrival(0.1 + 0.3 * i, 10, 10, priority=1) for i in range(400)]
    simulation = Simulation(
        [*low, *high], eos=-1, max_rows=2, preemption=Preemption.REPLAY,
        wait_order=by_aged_priority, decode_equals_prefill=False,
    ).run()  # fmt: skip
    simulation.check_outcomes()
    last = simulation.outcomes[1]
    assert last.ended < max(one.arrival.at for one in simulation.outcomes) / 2
    assert last.active.sequence.waited <= AGEING + 1


def test_memory_that_went_elsewhere_ends_who_does_not_fit_any_more():
    requests = [Arrival(0, 10, 100), Arrival(0, 10, 100), Arrival(0, 10, 20)]
    simulation = Simulation(requests, total=120, eos=-1)
    simulation.step()
    simulation.budget.measure(60)
    simulation.check_every = 10**6  # who runs goes on with what it was promised
    while not simulation.is_over:
        simulation.step()
    runs, waits, small = simulation.outcomes
    assert (runs.reason, small.reason) == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert (waits.reason, type(waits.error)) == (FinishReason.ERROR, OutOfMemory)
    simulation.check()
