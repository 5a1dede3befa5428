"""Which waiting request runs next: first come, by priority, or in fair shares."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum

from tokenmill.scheduler.sequence import Sequence

_Rank = tuple[float, int]
_Heap = list[tuple[_Rank, Sequence]]


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

    def outranks(self, waiting: Sequence, running: Sequence, now: float) -> bool:
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

    Waiting raises a request, so that nobody starves: who waited long enough goes before higher
    priorities that came later, and cannot be parked for one that waited less.

    Args:
        ageing: seconds of waiting that weigh as much as one step of priority.
    """

    preempts = True

    def __init__(self, ageing: float = 10.0) -> None:
        super().__init__()
        self._ageing = ageing

    def outranks(self, waiting: Sequence, running: Sequence, now: float) -> bool:
        """See `QueuePolicy.outranks`. Never among equals, where it would only cost."""
        waited = waiting.waited + now - waiting.waiting_since
        return waiting.priority > running.priority and (
            waiting.priority + waited / self._ageing
            > running.priority + running.waited / self._ageing
        )

    def _rank(self, sequence: Sequence) -> _Rank:
        # Everybody ages alike, so that the order among those who wait never changes.
        since = sequence.waiting_since - sequence.waited
        return (since / self._ageing - sequence.priority, sequence.order)


class FairShare(QueuePolicy):
    """The client that was served least goes first; by priority and arrival within a client.

    A virtual counter per client takes the tokens it was given, of prompts and of replies alike
    (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A client that comes
    back from idleness starts at the least counter of those who are there, if its own is lower,
    so that it can hoard nothing, and finds its own again, if that is higher.
    """

    def __init__(self) -> None:
        super().__init__()
        self._served: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._lines: dict[str, _Heap] = {}

    def first(self) -> Sequence | None:
        """See `QueuePolicy.first`."""
        heads = [line[0] for line in self._lines.values()]
        if not heads:
            return None
        return min(heads, key=lambda head: (self._served[head[1].client], head[1].order))[1]

    def remove(self, sequence: Sequence) -> None:
        """See `QueuePolicy.remove`."""
        super().remove(sequence)
        if not self._lines[sequence.client]:
            del self._lines[sequence.client]

    def arrived(self, sequence: Sequence) -> None:
        """See `QueuePolicy.arrived`."""
        client = sequence.client
        if client not in self._present:
            least = min((self._served[other] for other in self._present), default=0)
            self._served[client] = max(self._served.get(client, 0), least)
        self._present[client] = self._present.get(client, 0) + 1

    def served(self, sequence: Sequence, tokens: int) -> None:
        """See `QueuePolicy.served`."""
        self._served[sequence.client] += tokens

    def left(self, sequence: Sequence) -> None:
        """See `QueuePolicy.left`."""
        client = sequence.client
        self._present[client] -= 1
        if self._present[client]:
            return
        del self._present[client]
        # Counters below those who are there would be raised to theirs anyway.
        least = min((self._served[other] for other in self._present), default=None)
        self._served = {
            name: count
            for name, count in self._served.items()
            if name in self._present or (least is not None and count > least)
        }

    def _rank(self, sequence: Sequence) -> _Rank:
        return (-sequence.priority, sequence.order)

    def _heap(self, sequence: Sequence) -> _Heap:
        return self._lines.setdefault(sequence.client, [])


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
