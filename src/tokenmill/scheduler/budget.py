"""The ledger of state memory: one for all models of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class MemoryBudget:
    """Bytes that may be reserved for the state of sequences. Thread-safe.

    Each loaded model has an `Account` and says how much all of its requests may come to need
    together, since layouts differ in what they pay for: the sum is the model's to compute, see
    `BackendLimits.bytes`. The accounts never exceed the budget together.

    Args:
        total: bytes, at least 0.
    """

    def __init__(self, total: int) -> None:
        assert total >= 0, "a budget is a number of bytes"
        self.total = total
        self._lock = threading.Lock()
        self._reserved: dict[Account, int] = {}

    def measure(self, room: int) -> None:
        """Sets the total anew.

        Args:
            room: bytes that states may take beside those that are in memory already.
        """
        with self._lock:
            committed = sum(account.committed() for account in self._reserved)
            self.total = max(0, room) + committed

    @property
    def reserved(self) -> int:
        """Bytes that all accounts hold together."""
        with self._lock:
            return sum(self._reserved.values())

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.total - self.reserved

    def open(self, committed: Callable[[], int]) -> Account:
        """Returns a new, empty account.

        Args:
            committed: tells how much of what it holds is in memory at the moment.
        """
        account = Account(self, committed)
        with self._lock:
            self._reserved[account] = 0
        return account

    def _set(self, account: Account, size: int) -> bool:
        with self._lock:
            assert account in self._reserved, "a closed account holds nothing"
            held = self._reserved[account]
            others = sum(self._reserved.values()) - held
            if size > held and others + size > self.total:
                return False
            self._reserved[account] = size
            return True

    def _held(self, account: Account) -> int:
        with self._lock:
            return self._reserved.get(account, 0)

    def _close(self, account: Account) -> None:
        with self._lock:
            self._reserved.pop(account, None)


class Account:
    """One model's part of a `MemoryBudget`; see `MemoryBudget.open`."""

    def __init__(self, budget: MemoryBudget, committed: Callable[[], int]) -> None:
        self._budget, self.committed = budget, committed

    @property
    def held(self) -> int:
        """Bytes that this account holds."""
        return self._budget._held(self)

    @property
    def available(self) -> int:
        """Bytes that this account could hold in all: its own and those that nobody holds."""
        return self._budget.free + self.held

    @property
    def most(self) -> int:
        """Bytes that this account could hold if nobody else held any."""
        return self._budget.total

    def resize(self, size: int) -> bool:
        """Holds `size` bytes from now on. Returns False, and changes nothing, if there is no room.

        Less than before always succeeds.
        """
        return self._budget._set(self, size)

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        self._budget._close(self)
