"""Which waiting request runs next: first come, by priority, or in fair shares."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum

from tokenmill.scheduler.sequence import Sequence

_Rank = tuple[float, int]
_Heap = list[tuple[_Rank, Sequence]]
_Turn = tuple[int, int, str]
"""What a client was served, the order of its first request, and its name."""

_SPARE_CLIENTS = 64
"""So many counters of absent clients may be left before they are looked through."""


class QueuePolicy(ABC):
    """The waiting requests, and which of them is next. Not thread-safe.

    `first` tells and does not remove: a request that cannot start yet stays first, so that
    smaller ones do not overtake it for ever.
    """

    preempts = False
    """Whether who waits may take the place of who runs, see `outranks`."""

    def __init__(self) -> None:
        self._ranks: dict[Sequence, _Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._ranks))

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._ranks

    def add(self, sequence: Sequence) -> None:
        """Lets a request wait."""
        rank = self._rank(sequence)
        self._ranks[sequence] = rank
        heapq.heappush(self._heap(sequence), (rank, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Takes a request out; it must be there."""
        del self._ranks[sequence]
        self._clean(self._heap(sequence))

    @abstractmethod
    def first(self) -> Sequence | None:
        """Returns who is next, or None where nobody waits."""

    @abstractmethod
    def _rank(self, sequence: Sequence) -> _Rank:
        """Returns what is smaller the sooner the request is due; it stays as it is."""

    @abstractmethod
    def _heap(self, sequence: Sequence) -> _Heap:
        """Returns the heap in which the request stands."""

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Returns whether `running` should make room for `waiting`."""
        return False

    def arrived(self, sequence: Sequence) -> None:  # noqa: B027  # most need not know
        """Notes a new request, before it is added."""

    def served(self, sequence: Sequence, tokens: int) -> None:  # noqa: B027
        """Notes that a request was given work."""

    def left(self, sequence: Sequence) -> None:  # noqa: B027
        """Notes that a request has ended, after it was removed."""

    def _clean(self, heap: _Heap) -> None:
        """Drops entries of those who are gone from the top, where they would be in the way."""
        while heap and self._ranks.get(heap[0][1]) is not heap[0][0]:
            heapq.heappop(heap)


class _OneLine(QueuePolicy):
    """All requests stand in one line."""

    def __init__(self) -> None:
        super().__init__()
        self._line: _Heap = []

    def first(self) -> Sequence | None:
        """See `QueuePolicy.first`."""
        return self._line[0][1] if self._line else None

    def _heap(self, sequence: Sequence) -> _Heap:
        return self._line


class FirstCome(_OneLine):
    """In order of arrival."""

    def _rank(self, sequence: Sequence) -> _Rank:
        return (0.0, sequence.order)


class ByPriority(_OneLine):
    """The highest priority first, and in order of arrival within one.

    Waiting raises a request, so that nobody starves: one that has waited, in all, for `ageing`
    seconds and each step of priority between them goes before a higher one that comes now, and
    cannot be parked for it. So a request is passed only by higher ones that came before that
    time was over.

    Args:
        ageing: seconds of waiting that weigh as much as one step of priority.
    """

    preempts = True

    def __init__(self, ageing: float = 10.0) -> None:
        super().__init__()
        self._ageing = ageing

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """See `QueuePolicy.outranks`. Never among equals, where it would only cost.

        How long the one has waited does not count: who started before it, though lower, would
        be parked for it a moment later, when it has waited that moment more.
        """
        return waiting.priority > running.priority + running.waited / self._ageing

    def _rank(self, sequence: Sequence) -> _Rank:
        return _aged(sequence, self._ageing)


class FairShare(QueuePolicy):
    """The client that was served least goes first; within a client it is as by priority.

    A virtual counter per client takes the tokens it was given, of prompts and of replies alike
    (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A client of whom nobody
    waited, and now somebody does, starts at the least counter of those who wait, if its own is
    lower: who asked for less than its share cannot hoard the rest. Where nobody waits, it is the
    counter of who did last. While two clients wait, what they are given differs by at most what
    one batch can hold, and while a client waits, any other is given at most that much and what
    it was behind.

    Args:
        ageing: see `ByPriority`.
    """

    def __init__(self, ageing: float = 10.0) -> None:
        super().__init__()
        self._ageing = ageing
        self._served: dict[str, int] = {}
        self._present: Counter[str] = Counter()
        self._lines: dict[str, _Heap] = {}
        self._turns: list[_Turn] = []
        self._turn: dict[str, _Turn] = {}  # the entry that counts, of each client with a line
        self._last: str | None = None

    def first(self) -> Sequence | None:
        """See `QueuePolicy.first`."""
        while self._turns:
            turn = self._turns[0]
            client = turn[2]
            if self._turn.get(client) is not turn:
                heapq.heappop(self._turns)
            elif turn[0] < self._served[client]:  # looked at when its turn has come
                heapq.heappop(self._turns)
                self._line_up(client)
            else:
                return self._lines[client][0][1]
        return None

    def add(self, sequence: Sequence) -> None:
        """See `QueuePolicy.add`."""
        client = sequence.client
        if client not in self._lines:
            self._served[client] = max(self._served.get(client, 0), self._floor())
        super().add(sequence)
        self._line_up(client)

    def remove(self, sequence: Sequence) -> None:
        """See `QueuePolicy.remove`."""
        super().remove(sequence)
        client = sequence.client
        if self._lines[client]:
            self._line_up(client)
        else:
            del self._lines[client], self._turn[client]
            self._last = client

    def _line_up(self, client: str) -> None:
        """Gives a client its place by what it was served, and then by its first request."""
        turn = (self._served[client], self._lines[client][0][1].order, client)
        if turn != self._turn.get(client):
            self._turn[client] = turn
            heapq.heappush(self._turns, turn)

    def arrived(self, sequence: Sequence) -> None:
        """See `QueuePolicy.arrived`."""
        self._present[sequence.client] += 1

    def served(self, sequence: Sequence, tokens: int) -> None:
        """See `QueuePolicy.served`."""
        self._served[sequence.client] += tokens

    def left(self, sequence: Sequence) -> None:
        """See `QueuePolicy.left`."""
        self._present[sequence.client] -= 1
        if not self._present[sequence.client]:
            del self._present[sequence.client]
        if len(self._served) > 2 * len(self._present) + _SPARE_CLIENTS:
            self._forget()

    def _floor(self) -> int:
        """Returns the least counter that a client which begins to wait can have."""
        first = self.first()
        client = self._last if first is None else first.client
        return 0 if client is None else self._served[client]

    def _forget(self) -> None:
        """Drops counters of absent clients that would be raised to the floor anyway."""
        floor = self._floor()
        self._served = {
            client: count
            for client, count in self._served.items()
            if count > floor or client in self._present or client == self._last
        }

    def _rank(self, sequence: Sequence) -> _Rank:
        return _aged(sequence, self._ageing)

    def _heap(self, sequence: Sequence) -> _Heap:
        return self._lines.setdefault(sequence.client, [])


def _aged(sequence: Sequence, ageing: float) -> _Rank:
    # Everybody ages alike, so that the order among those who wait never changes.
    since = sequence.waiting_since - sequence.waited
    return (since / ageing - sequence.priority, sequence.order)


class PolicyName(Enum):
    """The policies by the names that people use."""

    FIRST_COME = "first_come"
    PRIORITY = "priority"
    FAIR = "fair"


_POLICIES: dict[PolicyName, Callable[[], QueuePolicy]] = {
    PolicyName.FIRST_COME: FirstCome,
    PolicyName.PRIORITY: ByPriority,
    PolicyName.FAIR: FairShare,
}


def new_policy(name: PolicyName) -> QueuePolicy:
    """Returns an empty queue of that policy."""
    return _POLICIES[name]()
