"""Sequences that own a row of `Slots` each, and how rows come to lie side by side."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tokenmill.backends.ort.arrange import arrange
from tokenmill.backends.ort.buckets import bucket
from tokenmill.backends.ort.sequences import OpenSequence, Sequences
from tokenmill.backends.ort.slots import Slots
from tokenmill.core.ids import SequenceId


@dataclass(slots=True)
class SlotSequence(OpenSequence):
    """A sequence in a row.

    Attributes:
        row: of the slots; changes when rows are moved.
    """

    row: int = 0


class SlotSequences(Sequences[SlotSequence]):
    """New sequences take the lowest free row, so that rows stay dense."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots.max_rows, slots.geometry)
        self._slots = slots
        self._free_rows = list(range(slots.max_rows))

    def truncate(self, state: SlotSequence, length: int) -> None:
        """See `Sequences.truncate`. Whole pages behind `length` are given back."""
        state.length, state.pending = length, 0
        self._slots.shrink(state.row, length)

    def fork(self, state: SlotSequence, length: int) -> SequenceId:
        """See `Sequences.fork`. The state is copied."""
        forked = self.open()
        target = self.find(forked)
        self._slots.copy(state.row, target.row, length)
        target.length = length
        return forked

    def read(self, state: SlotSequence, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """See `Sequences.read`."""
        return self._slots.read(state.row, start, stop)

    def append(self, state: SlotSequence, arrays: Sequence[NDArray[Any]], n: int) -> None:
        """See `Sequences.append`."""
        length = state.length + n
        if length > self._slots.capacity:
            self._slots.lay_out(bucket(length, self._slots.max_context))
        self._slots.write(state.row, state.length, arrays)
        state.length = length
        state.pending = 0

    def longest(self) -> int:
        """Returns the committed tokens of the longest sequence; 0 where none is open."""
        return max((state.length for state in self._open.values()), default=0)

    def side_by_side(self, batch: Sequence[SlotSequence], max_moved: int | None = None) -> bool:
        """Moves rows until the batch's rows are contiguous.

        Args:
            batch: at least one sequence.
            max_moved: do nothing where more tokens than this would be copied.

        Returns:
            Whether the batch is contiguous now.
        """
        rows = [state.row for state in batch]
        if max(rows) - min(rows) < len(rows):
            return True
        owners = {state.row: state for state in self._open.values()}
        tokens = {row: state.length + state.pending for row, state in owners.items()}
        plan = arrange(rows, tokens, self._slots.max_rows)
        if max_moved is not None and plan.moved_tokens > max_moved:
            return False
        for a, b in plan.exchanges:
            self._slots.exchange(a, tokens[a], b, tokens.get(b, 0))
            owners[a].row = b
            if b in owners:
                owners[b].row = a
            else:
                self._free_rows.remove(b)
                self._free_rows.append(a)
                heapq.heapify(self._free_rows)
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError where rows are lost, shared, or hold what nobody owns."""
        slots = self._slots
        rows = sorted([state.row for state in self._open.values()] + self._free_rows)
        assert rows == list(range(slots.max_rows)), f"rows are lost or shared: {rows}"
        for sequence, state in self._open.items():
            written = slots.touched[state.row]
            assert 0 <= state.length + state.pending <= written, (sequence, state, written)
            assert state.length <= slots.max_context, (sequence, state)
            assert written <= slots.capacity, (sequence, state, written)
        stale = [row for row in self._free_rows if slots.touched[row]]
        assert not stale, f"free rows {stale} hold memory"

    def _make(self) -> SlotSequence:
        return SlotSequence(row=heapq.heappop(self._free_rows))

    def _free(self, state: SlotSequence) -> None:
        self._slots.shrink(state.row, 0)
        heapq.heappush(self._free_rows, state.row)
