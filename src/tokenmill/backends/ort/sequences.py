"""The sequences of a backend, whatever the layout of their state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from tokenmill.backends.ort.pages import PageGeometry
from tokenmill.core.errors import Closed, InvalidRequest, OutOfMemory
from tokenmill.core.ids import SequenceId


@dataclass(slots=True)
class OpenSequence:
    """An open sequence.

    Attributes:
        length: committed tokens.
        pending: tokens of the last run that a commit may still take.
    """

    length: int = 0
    pending: int = 0

    def check_range(self, start: int, stop: int) -> None:
        """Raises `InvalidRequest` where tokens `start` to `stop` are not all committed."""
        if not 0 <= start <= stop <= self.length:
            raise InvalidRequest(
                f"tokens {start} to {stop} are not there",
                why=f"the sequence has {self.length} committed tokens",
            )


State = TypeVar("State", bound=OpenSequence)


class Sequences(ABC, Generic[State]):
    """The open sequences and their state.

    A layout says how state is made, cut, copied and freed; ids and lengths are kept here.

    Args:
        max_rows: most sequences open at once.
        geometry: the arrays of a sequence, in the order of `read` and `append`.
    """

    def __init__(self, max_rows: int, geometry: Sequence[PageGeometry]) -> None:
        self.max_rows, self.geometry = max_rows, tuple(geometry)
        self._open: dict[SequenceId, State] = {}
        self._next_id = 0

    def open(self) -> SequenceId:
        """Starts an empty sequence. Raises `OutOfMemory` where `max_rows` are open."""
        if len(self._open) >= self.max_rows:
            raise OutOfMemory(
                "no more sequences can be open",
                why=f"all {self.max_rows} rows are in use",
                fix="Close one or raise max_rows",
            )
        sequence = SequenceId(self._next_id)
        self._next_id += 1
        self._open[sequence] = self._make()
        return sequence

    def find(self, sequence: SequenceId) -> State:
        """Returns an open sequence, or raises `Closed`."""
        state = self._open.get(sequence)
        if state is None:
            raise Closed(f"sequence {sequence} is not open")
        return state

    def close(self, sequence: SequenceId) -> None:
        """Gives the sequence's memory back."""
        state = self.find(sequence)
        del self._open[sequence]
        self._free(state)

    def close_all(self) -> None:
        """Closes every sequence."""
        for sequence in list(self._open):
            self.close(sequence)

    def discard_pending(self) -> None:
        """Forgets what runs computed and nobody committed."""
        for state in self._open.values():
            self.discard(state)

    def discard(self, state: State) -> None:
        """The same for one sequence."""
        state.pending = 0

    def commit(self, state: State, n: int) -> None:
        """Makes the first `n` pending tokens the sequence's own."""
        state.length += n
        state.pending = 0

    @abstractmethod
    def truncate(self, state: State, length: int) -> None:
        """Forgets all tokens from `length` on, pending ones too."""

    @abstractmethod
    def fork(self, state: State, length: int) -> SequenceId:
        """Opens a sequence with the first `length` tokens. Raises as `open` does."""

    @abstractmethod
    def read(self, state: State, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Yields copies [heads, tokens, dim] in the order of `geometry`."""

    @abstractmethod
    def append(self, state: State, arrays: Sequence[NDArray[Any]], n: int) -> None:
        """Adds `n` committed tokens; pending ones are gone."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raises AssertionError where memory is lost, shared, or held for nobody."""

    @abstractmethod
    def _make(self) -> State:
        """Returns the state of an empty sequence."""

    @abstractmethod
    def _free(self, state: State) -> None:
        """Gives back the memory of a sequence that is no longer in the table."""
