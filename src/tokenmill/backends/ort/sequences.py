"""Which sequence owns which row, and how rows come to lie side by side."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.backends.ort.arrange import arrange
from tokenmill.backends.ort.slots import Slots
from tokenmill.core.errors import Closed, InvalidRequest, OutOfMemory
from tokenmill.core.ids import SequenceId


@dataclass(slots=True)
class OpenSequence:
    """An open sequence.

    Attributes:
        row: of the slots; changes when rows are moved.
        length: committed tokens.
        pending: tokens of the last run that a commit may still take.
    """

    row: int
    length: int = 0
    pending: int = 0

    def check_range(self, start: int, stop: int) -> None:
        """Raises `InvalidRequest` where tokens `start` to `stop` are not all committed."""
        if not 0 <= start <= stop <= self.length:
            raise InvalidRequest(
                f"tokens {start} to {stop} are not there",
                why=f"the sequence has {self.length} committed tokens",
            )


class SequenceTable:
    """The open sequences. New ones take the lowest free row, so that rows stay dense."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._open: dict[SequenceId, OpenSequence] = {}
        self._free_rows = list(range(slots.max_rows))
        self._next_id = 0

    def open(self) -> SequenceId:
        """Starts an empty sequence. Raises `OutOfMemory` where no row is free."""
        if not self._free_rows:
            raise OutOfMemory(
                "no more sequences can be open",
                why=f"all {self._slots.max_rows} rows are in use",
                fix="Close one or raise max_rows",
            )
        sequence = SequenceId(self._next_id)
        self._next_id += 1
        self._open[sequence] = OpenSequence(heapq.heappop(self._free_rows))
        return sequence

    def find(self, sequence: SequenceId) -> OpenSequence:
        """Returns an open sequence, or raises `Closed`."""
        state = self._open.get(sequence)
        if state is None:
            raise Closed(f"sequence {sequence} is not open")
        return state

    def close(self, sequence: SequenceId) -> None:
        """Gives the sequence's row and memory back."""
        state = self.find(sequence)
        self._slots.shrink(state.row, 0)
        heapq.heappush(self._free_rows, state.row)
        del self._open[sequence]

    def close_all(self) -> None:
        """Closes every sequence."""
        for sequence in list(self._open):
            self.close(sequence)

    def discard_pending(self) -> None:
        """Forgets what runs computed and nobody committed."""
        for state in self._open.values():
            state.pending = 0

    def side_by_side(self, batch: Sequence[OpenSequence], max_moved: int | None = None) -> bool:
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
