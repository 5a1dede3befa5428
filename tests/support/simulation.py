"""Engines over a scripted backend and a clock of their own: hours of serving in seconds."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

from support.simulated_backend import EOS, Clock, SimulatedBackend, StepSeconds, expected_reply
from tokenmill.core.errors import TokenmillError
from tokenmill.core.events import FinishReason
from tokenmill.core.request import GenerateRequest
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.active import ActiveRequest
from tokenmill.engine.engine import Engine
from tokenmill.engine.prepare import PreparedRequest
from tokenmill.engine.streams import RequestStream
from tokenmill.scheduler.actions import Grow, Park, Start
from tokenmill.scheduler.admission import Capacity, Capped, Rejected, judge
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.policy import PolicyName, new_policy
from tokenmill.scheduler.scheduler import Preemption, Scheduler
from tokenmill.telemetry.timeline import Timeline

_PATIENCE = 3
"""After so many steps in vain of everybody, only time can help."""
_GREEDY = SamplingParams(temperature=0)


class WatchedScheduler(Scheduler):
    """A scheduler of which every decision is looked at.

    Attributes:
        parks_alone: how often a sequence was parked with nobody beside it.
        served_tokens: what clients were given, as the policy is told.
        wait_order: how waiting sequences must go: a key of (sequence, now), smallest first; None
            where any order may be.
    """

    def __init__(self, *args, wait_order, **fields):
        super().__init__(*args, **fields)
        self.parks_alone = 0
        self.wait_order = wait_order
        self.served_tokens = Counter()

    def decide(self, now):
        running = dict.fromkeys(self._running)
        key = self.wait_order or (lambda sequence, now: 0)
        waiting = {sequence: key(sequence, now) for sequence in self._policy}
        actions = super().decide(now)
        for action in actions:
            sequence = action.sequence
            match action:
                case Start():
                    assert waiting.pop(sequence) <= min(waiting.values(), default=math.inf) + 1e-9
                    running[sequence] = None
                    assert len(running) <= self._capacity.max_rows
                case Park():
                    oldest = min(running, key=lambda other: other.order)
                    assert sequence is not oldest or len(running) == 1, "the oldest goes on"
                    self.parks_alone += len(running) == 1
                    del running[sequence]
                    waiting[sequence] = key(sequence, now)
                case Grow():
                    assert sequence in running
        assert list(running) == list(self._running)
        return actions

    def served(self, sequence, tokens):
        self.served_tokens[sequence.client] += tokens
        super().served(sequence, tokens)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes in.

    Attributes:
        at: when.
        prompt: its length.
        max_tokens: None for an open request, which may use the context that is left.
        cancel_after, timeout: seconds after `at`; None for never.
        fails_at: its row fails when its sequence has so many tokens; None for never.
        export_fails, import_fails: copies of its state cannot be made, or not be brought back.
    """

    at: float
    prompt: int
    max_tokens: int | None
    priority: int = 0
    client: str = ""
    cancel_after: float | None = None
    timeout: float | None = None
    fails_at: int | None = None
    export_fails: bool = False
    import_fails: bool = False


@dataclass(eq=False)
class Outcome:
    """How a request went: `reason` is None while it has not ended, and where it was rejected."""

    arrival: Arrival
    prepared: PreparedRequest
    stream: RequestStream | None = None
    active: ActiveRequest | None = None
    reason: FinishReason | None = None
    error: TokenmillError | None = None
    ids: list = field(default_factory=list)
    note: str = ""
    ended: float = 0.0
    last_step: float = 0.0

    @property
    def tag(self):
        return self.prepared.prompt_ids[0]

    @property
    def started(self):
        """When it got its first row; None if it never did."""
        return next((s.end for s in self.prepared.timeline.spans if s.name == "queue"), None)

    @property
    def replied(self):
        return self.active.output.num_tokens


@cache
def _prompt_tail(length, vocab_size):
    return tuple(random.Random(length).randrange(vocab_size) for _ in range(length))


class Simulation:
    """One model's engine, its requests and what became of them.

    Args:
        arrivals: any order; they come in by their times.
        total: bytes of state; ignored where a budget is given.
        budget: shared with other simulations.
        clock: shared with other simulations.
        wait_order: see `WatchedScheduler`.
        eos: ends replies; -1 for none, so that they go as far as they may.
        seed: another one makes other texts of the same requests.
        check_every: steps between two looks at all accounts.
    """

    def __init__(
        self,
        arrivals,
        *,
        total=1000,
        budget=None,
        clock=None,
        policy=PolicyName.PRIORITY,
        preemption=Preemption.AUTO,
        max_rows=4,
        max_context=256,
        vocab_size=16,
        bytes_of=sum,
        prefill_tokens=64,
        max_stretch=None,
        decode_equals_prefill=True,
        growth_tokens=16,
        seconds=None,
        eos=EOS,
        seed=0,
        wait_order=None,
        check_every=1,
    ):
        self.clock = clock or Clock()
        self.budget = budget or MemoryBudget(total)
        self.backend = SimulatedBackend(
            self.clock, seconds=seconds or StepSeconds(), vocab_size=vocab_size, max_rows=max_rows,
            max_context=max_context, decode_equals_prefill=decode_equals_prefill,
            bytes_of=bytes_of,
        )  # fmt: skip
        self.backend.during_run = self._cancel_due
        self.capacity = Capacity(bytes_of, self.budget.total, max_rows, growth_tokens)
        self.policy = new_policy(policy)
        costs = StepCosts()
        self.scheduler = WatchedScheduler(
            self.capacity, self.budget, self.policy, costs, prefill_tokens=prefill_tokens,
            max_stretch=max_stretch, preemption=preemption,
            replays_in_chunks=decode_equals_prefill, wait_order=wait_order,
        )  # fmt: skip
        self.engine = Engine(self.backend, self.scheduler, costs, clock=self.clock)
        self.decode_equals_prefill, self.check_every = decode_equals_prefill, check_every
        self.eos, self.steps, self._cancelled = eos, 0, []
        self._tags = itertools.count(10**6 * (seed + 1))
        self.outcomes = [self._outcome(arrival) for arrival in arrivals]
        self._to_come = sorted(self.outcomes, key=lambda one: one.arrival.at)[::-1]
        self._to_cancel = sorted(
            (one for one in self.outcomes if one.arrival.cancel_after is not None),
            key=lambda one: one.arrival.at + one.arrival.cancel_after,
            reverse=True,
        )
        self.live = {}

    def _outcome(self, arrival):
        backend = self.backend
        tag = next(self._tags)
        prompt = (tag, *_prompt_tail(arrival.prompt - 1, backend.vocab_size))
        room = backend.limits.max_context - len(prompt)
        assert room >= 1, "a prompt that fits the context"
        is_open = arrival.max_tokens is None or arrival.max_tokens > room
        request = GenerateRequest(prompt, _GREEDY, priority=arrival.priority, client=arrival.client)
        prepared = PreparedRequest(
            request=request,
            prompt_ids=prompt,
            sampling=_GREEDY,
            max_tokens=room if is_open else arrival.max_tokens,
            limited_by=FinishReason.CONTEXT if is_open else FinishReason.LENGTH,
            end_ids=frozenset({self.eos}),
            stop_ids=frozenset(),
            deadline=None if arrival.timeout is None else arrival.at + arrival.timeout,
            timeline=Timeline(request.id),
            is_open=arrival.max_tokens is None,
        )
        if arrival.fails_at is not None:
            backend.row_faults[tag] = arrival.fails_at
        if arrival.export_fails:
            backend.export_faults.add(tag)
        if arrival.import_fails:
            backend.import_faults.add(tag)
        return Outcome(arrival, prepared)

    @property
    def events(self):
        """When somebody comes in, is cancelled or has no time left: the next of each."""
        times = [one.prepared.deadline for one in self.live if one.prepared.deadline is not None]
        times += [one.arrival.at for one in self._to_come[-1:]]
        return times + [one.arrival.at + one.arrival.cancel_after for one in self._to_cancel[-1:]]

    @property
    def is_over(self):
        return not self._to_come and not self.engine.has_work

    def step(self):
        """Lets in who has come, and takes one step; returns whether anything was computed."""
        self._take_in()
        while self._cancelled:
            self.engine.cancel(self._cancelled.pop())
        start, before = self.clock.now, self.backend.runs
        advanced = self.engine.step()
        self.engine.sinks.flush()
        self.steps += 1
        self._collect(start)
        if self.steps % self.check_every == 0:
            self.check()
        return advanced and self.backend.runs > before

    def run(self, limit=10**6, after_step=lambda: None):
        """Steps until everybody has ended, at most so often."""
        while not self.is_over:
            assert self.steps < limit, "this takes too long"
            advanced = self.step()
            after_step()
            if not advanced and not self.is_over:
                pass_time([self])
        self.check()
        return self

    def check(self):
        """Looks at all accounts."""
        self.engine.check_integrity()
        assert self.budget.reserved <= self.budget.total
        copies = sum(one.active.copy is not None for one in self.live)
        assert copies == self.scheduler.num_copies
        if not self.engine.has_work:
            self.check_empty()

    def check_empty(self):
        """Nobody is here, and nothing is left of anybody."""
        scheduler = self.scheduler
        assert (scheduler.num_waiting, len(scheduler.running), scheduler.num_copies) == (0, 0, 0)
        assert (scheduler.account.held, scheduler.committed_bytes()) == (0, 0)
        assert (self.backend.committed, self.backend.digests) == ({}, {})
        gauges = self.engine.metrics.snapshot()
        assert (gauges.running_requests, gauges.parked_requests) == (0, 0)
        assert gauges.waiting_requests == {}

    def check_outcomes(self):
        """Everybody ended as they should have, with the ids that they should have."""
        for one in self.outcomes:
            self._check_outcome(one)

    def _take_in(self):
        while self._to_come and self._to_come[-1].arrival.at <= self.clock.now:
            self._submit(self._to_come.pop())
        self._cancel_due()

    def _submit(self, one):
        prepared = one.prepared
        match judge(prepared.demand, self.capacity):
            case Rejected():
                self.engine.metrics.rejected()
                return
            case Capped(max_tokens):
                one.prepared = prepared = replace(
                    prepared, max_tokens=max_tokens, limited_by=FinishReason.LENGTH, cap="capped"
                )
        one.stream = RequestStream(
            prepared.request.id, prepared.timeline, sinks=self.engine.sinks,
            on_cancel=self._cancelled.append,
        )  # fmt: skip
        one.active = ActiveRequest(prepared, None, one.stream, one.arrival.at)
        self.live[one] = None
        self.engine.add(one.active)

    def _cancel_due(self):
        while self._to_cancel:
            one = self._to_cancel[-1]
            if one.arrival.at + one.arrival.cancel_after > self.clock.now:
                return
            if one.stream is None and one in self._to_come:
                return  # it comes in with the next step, and is cancelled then
            self._to_cancel.pop()
            if one.stream is not None:
                one.stream.cancel()

    def _collect(self, step_start):
        for one in [one for one in self.live if one.stream._events]:
            for event in _drained(one.stream):
                one.ids += event.token_ids
                if event.finish is not None:
                    one.reason, one.error = event.finish.reason, event.finish.error
                    one.note = event.finish.note
                    one.ended, one.last_step = self.clock.now, step_start
                    del self.live[one]

    def _check_outcome(self, one):
        prepared, arrival = one.prepared, one.arrival
        if one.stream is None:
            assert isinstance(judge(prepared.demand, self.capacity), Rejected)
            return
        wanted = expected_reply(
            prepared.prompt_ids,
            prepared.max_tokens,
            vocab_size=self.backend.vocab_size,
            eos=self.eos,
            decode_equals_prefill=self.decode_equals_prefill,
        )
        assert one.active.copy is None, "who has ended holds nothing"
        assert one.ids == wanted[: len(one.ids)], "the ids do not depend on how they came about"
        cancel = None if arrival.cancel_after is None else arrival.at + arrival.cancel_after
        assert (one.error is not None) == (one.reason is FinishReason.ERROR)
        assert (one.tag in self.backend.failed) == (one.reason is FinishReason.ERROR)
        match one.reason:
            case FinishReason.CANCELLED:
                assert cancel is not None
                assert cancel <= one.ended
            case FinishReason.DEADLINE:
                assert prepared.deadline is not None
                assert prepared.deadline <= one.ended
            case FinishReason.ERROR:
                pass
            case _:
                whole = len(wanted) == prepared.max_tokens
                assert one.reason is (prepared.limited_by if whole else FinishReason.EOS)
                assert one.ids == wanted
                assert one.replied == len(wanted) + (not whole)
                assert prepared.deadline is None or one.last_step < prepared.deadline
                assert cancel is None or one.ended < cancel


def _drained(stream):
    """Its events; an error is one of them and not raised."""
    events = []
    while stream._events:
        events.append(stream._events.popleft())
    return events


def run_together(simulations, pick, limit=10**5):
    """Steps simulations of one clock and one budget until all are over.

    Args:
        simulations: those who share.
        pick: chooses the next one out of several.
        limit: most steps in all.
    """
    turns = Counter()  # steps without result, since somebody got on
    for _ in range(limit):
        busy = [one for one in simulations if not one.is_over]
        if not busy:
            break
        eager = [one for one in busy if turns[one] < _PATIENCE]
        if not eager:
            pass_time(busy)
            turns.clear()
            continue
        one = pick(eager)
        if one.step():
            turns.clear()
        else:
            turns[one] += 1
    assert all(one.is_over for one in simulations), "this takes too long"
    for one in simulations:
        one.check()


def pass_time(simulations):
    """Goes to the next event, since nothing can be computed before."""
    times = [time for one in simulations for time in one.events]
    assert times, "nobody runs, and nothing will change that"
    clock = simulations[0].clock
    clock.now = max(clock.now, min(times))
