"""Who runs: requests wait in a queue, run while there are rows and memory, and may be parked."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from enum import Enum

from tokenmill.scheduler.actions import Action, Drop, Grow, Park, Refuse, Start
from tokenmill.scheduler.admission import Admitted, Capacity, Queued, admit, starting_length
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import PlannedRow, plan_step, prefill_budget
from tokenmill.scheduler.policy import QueuePolicy
from tokenmill.scheduler.prefill_costs import Chunk
from tokenmill.scheduler.sequence import Sequence

_NOTHING: Mapping[Sequence, int] = {}


class Preemption(Enum):
    """What becomes of the state of a sequence that is parked."""

    AUTO = "auto"
    """Copied where there is room and that is predicted to be faster; else computed again."""
    SWAP = "swap"
    """Copied where there is room."""
    REPLAY = "replay"
    """Computed again."""


class Scheduler:
    """Decides, and leaves the doing to the engine. Not thread-safe.

    The account holds, at any time, what all running sequences may come to need together and
    what copies of parked ones take: so whatever runs can reach its end. The oldest running
    sequence is never parked for another one.

    Args:
        capacity: what the model's requests share; its total is the budget's affair.
        budget: the memory that this model shares with others.
        policy: the queue; from now on used by this scheduler only.
        costs: what steps take; learnt by `observe`.
        prefill_tokens: most prompt tokens in a step, at least 2.
        max_stretch: how many times longer than without them prompt tokens may make a step in
            which others decode, as predicted from earlier steps, but for rare exceptions (see
            `prefill_budget`); None for no such bound.
        preemption: see `Preemption`.
        replays_in_chunks: generated tokens that are computed again may go several at a time;
            where the numerics of one and several tokens differ, they may not.
    """

    def __init__(
        self,
        capacity: Capacity,
        budget: MemoryBudget,
        policy: QueuePolicy,
        costs: StepCosts,
        *,
        prefill_tokens: int = 512,
        max_stretch: float | None = None,
        preemption: Preemption = Preemption.AUTO,
        replays_in_chunks: bool = False,
    ) -> None:
        self._capacity = capacity
        self._policy, self._costs = policy, costs
        self._prefill_tokens, self._max_stretch = prefill_tokens, max_stretch
        self._preemption, self._replays_in_chunks = preemption, replays_in_chunks
        self._running: list[Sequence] = []
        self._kept: dict[Sequence, None] = {}
        self._arrivals = 0
        self._waiting_for = ""
        self._quiet_steps = 0
        self.account = budget.open(self.committed_bytes)
        """What is held for this model's sequences."""

    @property
    def max_rows(self) -> int:
        """Most sequences that run at once."""
        return self._capacity.max_rows

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their turn, parked ones included."""
        return len(self._policy)

    @property
    def num_copies(self) -> int:
        """Parked sequences of whose state there is a copy."""
        return len(self._kept)

    @property
    def running(self) -> SequenceOf[Sequence]:
        """Sequences that hold a row, in the order in which they got it."""
        return self._running

    @property
    def waiting_for(self) -> str:
        """What the first in the queue waits for: "rows" or "memory"; empty where nobody waits."""
        return self._waiting_for if len(self._policy) else ""

    def add(self, sequence: Sequence, now: float) -> None:
        """Lets a new sequence wait."""
        sequence.order, sequence.waiting_since = self._arrivals, now
        self._arrivals += 1
        self._policy.arrived(sequence)
        self._policy.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, waiting or running, and releases what it holds."""
        if sequence in self._policy:
            self._policy.remove(sequence)
        else:
            self._running.remove(sequence)
        self._kept.pop(sequence, None)
        sequence.reserved = sequence.num_kept_tokens = 0
        self._policy.left(sequence)
        self._settle()

    def decide(self, now: float) -> list[Action]:
        """Returns who gets room, who makes room and who starts, before the next step."""
        actions: list[Action] = []
        if any(len(sequence.tokens) > sequence.reserved for sequence in self._running):
            self._grow(now, actions)
        if len(self._policy):
            self._start(now, actions)
        return actions

    def plan(self) -> list[PlannedRow]:
        """Returns the rows of the next step; empty when nothing runs."""
        budget = self._prefill_tokens
        prompts = [
            sequence
            for sequence in self._running
            if sequence.is_prefilling or (self._replays_in_chunks and sequence.is_replaying)
        ]
        decode_rows = len(self._running) - len(prompts)
        if self._max_stretch is not None and prompts and decode_rows:
            budget = prefill_budget(
                self._costs,
                decode_rows,
                prompts[0].num_computed_tokens,
                budget,
                # Few streams do not hold up many prompts.
                max_stretch=self._max_stretch * max(1.0, len(prompts) / decode_rows),
                quiet_steps=self._quiet_steps,
            )
        rows = plan_step(self._running, budget, replays_in_chunks=self._replays_in_chunks)
        self._quiet_steps += 1
        if any(row.is_prefill for row in rows):
            self._quiet_steps = 0
        return rows

    def observe(self, plan: SequenceOf[PlannedRow], seconds: float) -> None:
        """Learns from what a step took; to be called before its tokens count as computed."""
        chunks = [
            Chunk(row.num_tokens, row.sequence.num_computed_tokens)
            for row in plan
            if row.is_prefill
        ]
        self._costs.observe(len(plan) - len(chunks), chunks, seconds)

    def served(self, sequence: Sequence, tokens: int) -> None:
        """Notes tokens that a sequence was given for the first time, for fair shares."""
        self._policy.served(sequence, tokens)

    def committed_bytes(self) -> int:
        """Returns the state that is in memory.

        Any thread may ask; the answer is exact between two steps.
        """
        lengths = [sequence.num_computed_tokens for sequence in list(self._running)]
        copies = [sequence.num_kept_tokens for sequence in list(self._kept)]
        bytes_of = self._capacity.bytes_of
        return bytes_of(lengths) + sum(bytes_of([tokens]) for tokens in copies)

    def close(self) -> None:
        """Gives back all memory that is held; idempotent."""
        self.account.close()

    def check_integrity(self) -> None:
        """Raises AssertionError where the ledger does not equal what is live."""
        held, needed = self.account.held, self._needed(self._lengths())
        assert held == needed, f"{held} bytes are held, and {needed} are needed"
        for sequence in self._running:
            assert sequence not in self._policy, "a running sequence does not wait"
            assert sequence.reserved <= sequence.demand.length, sequence.request_id
        for sequence in self._kept:
            assert sequence in self._policy, "only parked sequences have copies"
            assert sequence.num_kept_tokens > 0, sequence.request_id

    def _grow(self, now: float, actions: list[Action]) -> None:
        """Gives room to those whose next token has none; the oldest first."""
        for sequence in sorted(self._running, key=lambda sequence: sequence.order):
            known = len(sequence.tokens)
            if known <= sequence.reserved or sequence not in self._running:
                continue
            length = starting_length(sequence.demand, known, self._capacity)
            while not self._resize(self._lengths({sequence: length})):
                if self._drop_copy(actions):
                    continue
                victim = self._victim()
                if victim is None:
                    # Nobody else of this model can make room: another model has the memory. Who
                    # waits for it must hold nothing, or the two could wait for each other.
                    self._park(sequence, now, actions, None)
                    break
                lengths = self._lengths({sequence: length}, without=victim)
                self._park(victim, now, actions, lengths)
                if victim is sequence:
                    break
            else:
                sequence.reserved = length
                actions.append(Grow(sequence, length))

    def _start(self, now: float, actions: list[Action]) -> None:
        """Starts waiting sequences, in the policy's order, until one finds no room."""
        while (sequence := self._policy.first()) is not None:
            if self._start_first(sequence, now, actions):
                continue
            if not self._running:
                self._give_way(sequence, actions)
            return

    def _start_first(self, sequence: Sequence, now: float, actions: list[Action]) -> bool:
        """Starts a sequence or makes room for it; returns False where it has to wait."""
        length = starting_length(sequence.demand, len(sequence.tokens), self._capacity)
        # The copy of its own state becomes the state that it holds.
        copies = self._copies(without=sequence)
        available = self.account.available
        outcome = self._look(sequence, length, self._running, available - copies)
        if isinstance(outcome, Admitted):
            needed = self._capacity.bytes_of([*self._lengths(), length]) + copies
            if self.account.resize(needed):
                self._admit(sequence, length, now, actions)
                return True
            outcome = Queued(0, "memory")  # another model was faster
        self._waiting_for = outcome.why
        if outcome.why == "memory" and copies:
            without_copies = self._look(sequence, length, self._running, available)
            if isinstance(without_copies, Admitted) and self._drop_copy(actions, sequence):
                return True
        return self._preempt(sequence, length, now, actions)

    def _give_way(self, sequence: Sequence, actions: list[Action]) -> None:
        """Lets other models go first, which have the memory while nobody runs here.

        Who waits for another model must hold nothing, or the two could wait for each other.
        """
        while self._drop_copy(actions):
            pass
        length = starting_length(sequence.demand, len(sequence.tokens), self._capacity)
        if not isinstance(self._look(sequence, length, (), self.account.most), Admitted):
            actions.append(Refuse(sequence))

    def _look(
        self, sequence: Sequence, length: int, running: SequenceOf[Sequence], available: int
    ) -> Admitted | Queued:
        """Returns whether a sequence can start beside these, with so many bytes in all.

        One that was parked needs more: room to become twice as long, beside older ones that grow
        as much. Else it would soon be parked again, and whatever it computed again would have
        been for nothing. Younger ones do not count: they are parked before it.
        """
        lengths = [other.reserved for other in running]
        outcome = admit(length, lengths, 0, available, self._capacity)
        if not sequence.was_parked or not isinstance(outcome, Admitted):
            return outcome
        more = len(sequence.tokens)
        lasting = [
            min(other.demand.length, other.reserved + more)
            for other in running
            if other.order < sequence.order
        ]
        lasting.append(max(length, min(sequence.demand.length, 2 * more)))
        fits = self._capacity.bytes_of(lasting) <= available
        return outcome if fits else Queued(0, "memory")

    def _admit(self, sequence: Sequence, length: int, now: float, actions: list[Action]) -> None:
        self._policy.remove(sequence)
        self._kept.pop(sequence, None)
        sequence.waited += now - sequence.waiting_since
        sequence.reserved, sequence.num_kept_tokens = length, 0
        self._running.append(sequence)
        actions.append(Start(sequence, length))

    def _preempt(self, newcomer: Sequence, length: int, now: float, actions: list[Action]) -> bool:
        """Parks one sequence that the newcomer outranks, if parking them can make room at all."""
        if not self._policy.preempts:
            return False
        oldest = self._oldest()
        victims = [
            sequence
            for sequence in self._running
            if sequence is not oldest and self._policy.outranks(newcomer, sequence)
        ]
        spared = [sequence for sequence in self._running if sequence not in victims]
        outcome = self._look(newcomer, length, spared, self.account.available)
        if not victims or not isinstance(outcome, Admitted):
            return False
        victim = _first_to_go(victims)
        self._park(victim, now, actions, [*self._lengths(without=victim), length])
        return True

    def _park(
        self,
        sequence: Sequence,
        now: float,
        actions: list[Action],
        lengths: SequenceOf[int] | None,
    ) -> None:
        """Takes the row of a sequence.

        Args:
            lengths: what must find room afterwards; None to keep no copy of its state.
        """
        self._running.remove(sequence)
        sequence.reserved, sequence.waiting_since = 0, now
        sequence.was_parked = True
        keeps = lengths is not None and self._keeps(sequence, lengths)
        if keeps:
            sequence.num_kept_tokens = sequence.num_computed_tokens
            self._kept[sequence] = None
        self._settle()
        self._policy.add(sequence)
        actions.append(Park(sequence, keeps))

    def _keeps(self, sequence: Sequence, lengths: SequenceOf[int]) -> bool:
        """Returns whether to copy the state of a sequence that is being parked."""
        computed = sequence.num_computed_tokens
        if not computed or self._preemption is Preemption.REPLAY:
            return False
        size = self._capacity.bytes_of([computed])
        if self._needed(lengths) + size > self.account.available:
            return False
        if self._preemption is Preemption.SWAP:
            return True
        of_prompt = min(computed, sequence.num_prompt_tokens)
        replay = self._costs.replay_seconds(
            of_prompt, computed - of_prompt, in_chunks=self._replays_in_chunks
        )
        return replay is None or self._costs.swap_seconds(size) < replay

    def _drop_copy(self, actions: list[Action], spare: Sequence | None = None) -> bool:
        """Gives up the copy of who came last; returns False where there is none."""
        copies = [sequence for sequence in self._kept if sequence is not spare]
        if not copies:
            return False
        sequence = max(copies, key=lambda sequence: sequence.order)
        del self._kept[sequence]
        sequence.num_kept_tokens = 0
        self._settle()
        actions.append(Drop(sequence))
        return True

    def _victim(self) -> Sequence | None:
        """Returns who makes room; never the oldest."""
        oldest = self._oldest()
        victims = [sequence for sequence in self._running if sequence is not oldest]
        return _first_to_go(victims) if victims else None

    def _oldest(self) -> Sequence | None:
        return min(self._running, key=lambda sequence: sequence.order, default=None)

    def _lengths(
        self, changed: Mapping[Sequence, int] = _NOTHING, without: Sequence | None = None
    ) -> list[int]:
        """Returns what running sequences hold memory for."""
        return [changed.get(s, s.reserved) for s in self._running if s is not without]

    def _copies(self, without: Sequence | None = None) -> int:
        """Returns the bytes that copies of parked sequences take."""
        bytes_of = self._capacity.bytes_of
        return sum(bytes_of([s.num_kept_tokens]) for s in self._kept if s is not without)

    def _needed(self, lengths: SequenceOf[int]) -> int:
        return self._capacity.bytes_of(lengths) + self._copies()

    def _resize(self, lengths: SequenceOf[int]) -> bool:
        """Holds memory for these lengths, if there is room."""
        return self.account.resize(self._needed(lengths))

    def _settle(self) -> None:
        """Holds what is needed after somebody left; it is never more than before."""
        held = self._resize(self._lengths())
        assert held, "who leaves makes room"


def _first_to_go(victims: SequenceOf[Sequence]) -> Sequence:
    """Returns the lowest priority, and the latest of those."""
    return min(victims, key=lambda sequence: (sequence.priority, -sequence.order))
