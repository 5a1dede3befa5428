"""Who runs: requests wait in order of arrival and run while the backend has rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import PlannedRow, plan_step, prefill_budget
from tokenmill.scheduler.sequence import Sequence


class Scheduler:
    """First come, first served, over a fixed number of rows.

    Args:
        max_rows: most sequences that run at once.
        prefill_tokens: most prompt tokens in a step, at least 2.
        max_stretch: how many times longer than without them prompt tokens may make a step in
            which others decode, as predicted from earlier steps; None for no such bound.
    """

    def __init__(
        self, max_rows: int, prefill_tokens: int, max_stretch: float | None = None
    ) -> None:
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._max_stretch = max_stretch
        self._costs = StepCosts()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold a row."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence at the end of the queue."""
        self._waiting.append(sequence)

    def admit(self) -> Sequence | None:
        """Moves the longest waiting sequence to the running ones, if there is a row for it."""
        if not self._waiting or len(self._running) >= self._max_rows:
            return None
        sequence = self._waiting.popleft()
        self._running.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, waiting or running."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def plan(self) -> list[PlannedRow]:
        """Returns the rows of the next step; empty when nothing runs."""
        decode_rows = sum(not sequence.is_prefilling for sequence in self._running)
        budget = self._prefill_tokens
        if self._max_stretch is not None and 0 < decode_rows < len(self._running):
            budget = prefill_budget(self._costs, decode_rows, budget, self._max_stretch)
        return plan_step(self._running, budget)

    def observe(self, plan: SequenceOf[PlannedRow], seconds: float) -> None:
        """Learns from what a step took; `plan` as it was before its tokens were committed."""
        decode_rows = prefill_tokens = 0
        for row in plan:
            if row.sequence.is_prefilling:
                prefill_tokens += row.num_tokens
            else:
                decode_rows += 1
        self._costs.observe(decode_rows, prefill_tokens, seconds)
