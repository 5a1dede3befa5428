"""What serving promises, over simulated hours: who waits, who makes room, what it costs."""

import random
from collections import Counter

import pytest

from support.simulation import Arrival, Clock, Simulation, StepSeconds, run_together
from tokenmill.core.events import FinishReason
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.policy import PolicyName
from tokenmill.scheduler.scheduler import Preemption

AGEING = 10.0
"""Seconds of waiting that weigh as much as one step of priority."""


def many(count, choose, *, spread=400.0, open_share=0.2):
    """Requests of all kinds over `spread` seconds."""
    return [
        Arrival(
            at=choose.uniform(0, spread),
            prompt=choose.choice((1, 5, 20, 60, 150)),
            max_tokens=None if choose.random() < open_share else choose.randrange(1, 40),
            priority=choose.choice((-1, 0, 0, 3)),
            client=choose.choice("abcd"),
            cancel_after=choose.uniform(0, 1) if choose.random() < 0.1 else None,
            timeout=choose.uniform(0.05, 3) if choose.random() < 0.1 else None,
            fails_at=choose.randrange(1, 80) if choose.random() < 0.05 else None,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("policy", PolicyName)
def test_ten_thousand_requests_all_end_as_they_should(policy):
    simulation = Simulation(
        many(10_000, random.Random(3)), total=1500, policy=policy, max_rows=16, check_every=97,
        decode_equals_prefill=False,
    )  # fmt: skip
    simulation.backend.backend_faults = {500, 501, 9000}
    simulation.run().check_outcomes()
    ends = Counter(one.reason for one in simulation.outcomes)
    assert sum(ends.values()) == 10_000
    assert (
        min(
            ends[FinishReason(name)] for name in ("eos", "length", "cancelled", "deadline", "error")
        )
        > 50
    )
    assert simulation.engine.metrics.snapshot().preemptions


def test_first_come_is_first_served():
    def order(sequence, now):
        return sequence.order

    arrivals = many(300, random.Random(5), spread=5)
    Simulation(
        arrivals, total=600, policy=PolicyName.FIRST_COME, wait_order=order
    ).run().check_outcomes()


def test_who_starts_by_priority_outweighs_all_who_wait():
    def order(sequence, now):
        waited = sequence.waited + now - sequence.waiting_since
        return -(sequence.priority + waited / AGEING)

    arrivals = many(300, random.Random(6), spread=5)
    Simulation(arrivals, total=600, wait_order=order).run().check_outcomes()


def eight_open(choose, count=8, spread=0.5):
    """Requests without an end of their own: they go on until the context is full."""
    return [Arrival(choose.uniform(0, spread), choose.randrange(2, 30), None) for _ in range(count)]


@pytest.mark.parametrize("preemption", Preemption)
@pytest.mark.parametrize("count", [8, 50])
@pytest.mark.parametrize("seed", range(5))
def test_open_requests_that_do_not_fit_together_all_end_without_thrashing(preemption, count, seed):
    simulation = Simulation(
        eight_open(random.Random(seed), count), total=3 * 256, preemption=preemption, max_rows=8,
        max_context=256, decode_equals_prefill=False, eos=-1,
    )  # fmt: skip
    simulation.run().check_outcomes()
    figures = simulation.engine.metrics.snapshot()
    assert {one.reason for one in simulation.outcomes} == {FinishReason.CONTEXT}
    assert sum(figures.preemptions.values()) > 0
    assert figures.replayed_tokens <= figures.generated_tokens


def test_a_high_priority_starts_with_the_next_step_and_the_others_go_on():
    low = [Arrival(0.0, 10, 200) for _ in range(4)]
    high = Arrival(1.0, 10, 5, priority=3)
    simulation = Simulation([*low, high], total=4 * 256, max_rows=4, eos=-1).run()
    simulation.check_outcomes()
    outcome = simulation.outcomes[-1]
    assert outcome.started - 1.0 <= 0.03, "one step of four rows takes 14 ms"
    assert sum(simulation.engine.metrics.snapshot().preemptions.values()) == 1


def test_a_steady_stream_of_high_priorities_starves_nobody():
    # Two rows' worth of high priorities, for ever: a low one is served when it has waited for as
    # long as three steps of priority weigh, and keeps its row for as long as a newcomer waits.
    high = [Arrival(0.1 * i, 4, 24, priority=3) for i in range(2000)]
    low = [Arrival(5.0, 4, 24) for _ in range(3)]
    simulation = Simulation([*high, *low], total=10_000, max_rows=2, eos=-1, check_every=50).run()
    simulation.check_outcomes()
    busy = [one for one in simulation.outcomes if one.arrival.priority == 3]
    for one in simulation.outcomes[-3:]:
        assert one.ended < max(other.ended for other in busy) / 2


def test_clients_that_wait_are_given_like_amounts():
    # The one sends ten times as much, all at once.
    greedy = [Arrival(0.0, 20, 20, client="greedy") for _ in range(200)]
    modest = [Arrival(0.0, 20, 20, client="modest") for _ in range(20)]
    simulation = Simulation(
        [*greedy, *modest], total=10_000, max_rows=4, policy=PolicyName.FAIR, eos=-1
    )
    batch = 4 * 40
    shares = simulation.scheduler.served_tokens
    while any(one.started is None for one in simulation.outcomes[200:]):
        simulation.step()
        assert abs(shares["greedy"] - shares["modest"]) <= batch
    simulation.run().check_outcomes()
    assert shares == {"greedy": 200 * 39, "modest": 20 * 39}


def test_a_client_that_was_idle_has_saved_nothing_up():
    early = [Arrival(0.0, 20, 20, client="early") for _ in range(100)]
    late = [Arrival(3.0, 20, 20, client="late") for _ in range(50)]
    simulation = Simulation(
        [*early, *late], total=10_000, max_rows=4, policy=PolicyName.FAIR, eos=-1
    )
    shares = simulation.scheduler.served_tokens
    while simulation.clock.now < 3.0:
        simulation.step()
    before = shares["early"]
    assert before > 500
    while any(one.started is None for one in simulation.outcomes[100:]):
        simulation.step()
        assert abs(shares["early"] - before - shares["late"]) <= 2 * 4 * 40


@pytest.mark.parametrize("seed", range(20))
def test_two_models_that_share_too_little_memory_both_finish(seed):
    choose = random.Random(seed)
    clock, budget = Clock(), MemoryBudget(300)
    shared = {"budget": budget, "clock": clock, "max_context": 200, "max_rows": 4, "eos": -1}
    one = Simulation(eight_open(choose, 6), **shared, decode_equals_prefill=False)
    other = Simulation(eight_open(choose, 6), **shared, seed=1)
    pair = [one, other]
    run_together(pair, choose.choice)
    for simulation in pair:
        simulation.check_outcomes()
        assert {one.reason for one in simulation.outcomes} == {FinishReason.CONTEXT}
    assert budget.reserved == 0


def test_a_prompt_beside_streams_makes_nine_of_ten_steps_no_longer_than_promised():
    seconds = StepSeconds(fixed=0.015, row=0.002, chunk_token=0.0025, past_token=1e-6)
    streams = [Arrival(0.0, 8, 1500) for _ in range(4)]
    warm = [Arrival(0.0, n, 1) for n in (30, 100, 300, 700)]
    prompt = Arrival(8.0, 3000, 1)
    taken = {}
    for stretch in (3.0, None):
        simulation = Simulation(
            [*streams, *warm, prompt], total=10**6, max_rows=6, max_context=4096, eos=-1,
            prefill_tokens=512, max_stretch=stretch, seconds=seconds, check_every=100,
        )  # fmt: skip
        steps = []
        last = simulation.outcomes[-1]
        while last.reason is None:
            before, now = last.started, simulation.clock.now
            if not simulation.step() and not simulation.is_over:
                simulation._pass_time()
            if before is not None:
                steps.append(simulation.clock.now - now)
        steps.sort()
        taken[stretch] = (steps[int(0.9 * (len(steps) - 1))], last.ended - last.arrival.at)
    quiet = 0.015 + 4 * 0.002
    assert taken[3.0][0] <= 3.3 * quiet
    assert taken[None][0] > 10 * quiet
    assert taken[3.0][1] <= 2.5 * taken[None][1]


def test_one_stream_does_not_hold_up_many_prompts():
    seconds = StepSeconds(fixed=0.010, row=0.002, chunk_token=0.0025)
    arrivals = [Arrival(0.0, n, 1) for n in (20, 90)]
    arrivals += [Arrival(0.5, 8, 500), *(Arrival(2.0, 64, 60) for _ in range(7))]
    simulation = Simulation(
        arrivals, total=10**5, max_rows=8, max_context=1024, eos=-1, max_stretch=3.0,
        seconds=seconds,
    ).run()  # fmt: skip
    # All seven prompts alone take 1.1 s; those that decode meanwhile take some of the steps.
    first_tokens = simulation.engine.metrics.snapshot().first_token_seconds
    assert first_tokens.maximum < 1.5
