"""What serving promises, over simulated hours: who waits, who makes room, what it costs."""

import random

from support.simulation import Arrival, Simulation, StepSeconds
from tokenmill.scheduler.policy import PolicyName

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
