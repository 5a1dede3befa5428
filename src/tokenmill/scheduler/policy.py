"""Which waiting request runs next: first come, by priority, or in fair shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, frozen=True, eq=False)
class Entry(Generic[T]):
    """A waiting request.

    Attributes:
        item: whatever waits.
        order: counts up with arrivals; a request that comes back keeps its own.
        arrival: seconds on the clock that `QueuePolicy.first` is given.
        priority: higher goes first.
        key: whose share it takes, e.g. an API key.
    """

    item: T
    order: int
    arrival: float
    priority: int = 0
    key: str = ""


class QueuePolicy(ABC, Generic[T]):
    """The waiting requests, and which of them is next. Not thread-safe.

    `first` tells and does not remove: a request that cannot start yet stays first, so that
    smaller ones do not overtake it for ever.
    """

    def __init__(self) -> None:
        self._entries: dict[Entry[T], None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(list(self._entries))

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def add(self, entry: Entry[T]) -> None:
        """Lets a request wait."""
        self._entries[entry] = None

    def remove(self, entry: Entry[T]) -> None:
        """Takes a request out; it must be there."""
        del self._entries[entry]

    def first(self, now: float) -> Entry[T] | None:
        """Returns who is next, or None where nobody waits."""
        return min(self._entries, key=lambda entry: self._rank(entry, now), default=None)

    def position(self, entry: Entry[T], now: float) -> int:
        """Returns how many wait before that request."""
        own = self._rank(entry, now)
        return sum(1 for other in self._entries if self._rank(other, now) < own)

    @abstractmethod
    def _rank(self, entry: Entry[T], now: float) -> tuple[float, ...]:
        """Returns what is smaller the sooner the request is due; distinct for each request."""

    def served(self, key: str, tokens: float) -> None:
        """Notes that a key's request was given work."""

    def stopped(self, key: str) -> None:
        """Notes that a key has neither running nor waiting requests any more."""


class FirstCome(QueuePolicy[T]):
    """In order of arrival."""

    def _rank(self, entry: Entry[T], now: float) -> tuple[float, ...]:
        return (entry.order,)


class ByPriority(QueuePolicy[T]):
    """The highest priority first, and in order of arrival within one.

    Args:
        ageing: seconds of waiting that weigh as much as one step of priority, so that nobody
            starves.
    """

    def __init__(self, ageing: float = 10.0) -> None:
        super().__init__()
        self._ageing = ageing

    def _rank(self, entry: Entry[T], now: float) -> tuple[float, ...]:
        return (-(entry.priority + (now - entry.arrival) / self._ageing), entry.order)


class FairShare(QueuePolicy[T]):
    """The key that was served least first; by priority and arrival within a key.

    A virtual counter per key takes the tokens it was given (Sheng et al., "Fairness in Serving
    Large Language Models", OSDI 2024). A key that comes back from idleness starts at the least
    counter of those that are active, so that it can hoard nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._served: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._floor = 0.0

    def add(self, entry: Entry[T]) -> None:
        """See `QueuePolicy.add`."""
        super().add(entry)
        self._waiting[entry.key] = self._waiting.get(entry.key, 0) + 1
        if entry.key not in self._served:
            self._served[entry.key] = min(self._served.values(), default=self._floor)

    def remove(self, entry: Entry[T]) -> None:
        """See `QueuePolicy.remove`."""
        super().remove(entry)
        self._waiting[entry.key] -= 1
        if not self._waiting[entry.key]:
            del self._waiting[entry.key]

    def served(self, key: str, tokens: float) -> None:
        """See `QueuePolicy.served`."""
        self._served[key] = self._served.get(key, self._floor) + tokens

    def stopped(self, key: str) -> None:
        """See `QueuePolicy.stopped`."""
        assert key not in self._waiting, "a key with waiting requests is active"
        counter = self._served.pop(key, self._floor)
        if not self._served:
            self._floor = counter

    def _rank(self, entry: Entry[T], now: float) -> tuple[float, ...]:
        return (self._served[entry.key], -entry.priority, entry.order)


class PolicyName(Enum):
    """The policies by the names that people use."""

    FIRST_COME = "first_come"
    PRIORITY = "priority"
    FAIR = "fair"


_POLICIES: dict[PolicyName, Callable[[], QueuePolicy[object]]] = {
    PolicyName.FIRST_COME: FirstCome,
    PolicyName.PRIORITY: ByPriority,
    PolicyName.FAIR: FairShare,
}


def new_policy(name: PolicyName) -> QueuePolicy[object]:
    """Returns an empty queue of that policy."""
    return _POLICIES[name]()
