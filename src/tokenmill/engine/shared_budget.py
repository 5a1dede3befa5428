"""The memory budget that the models of this process share, unless they are given their own."""

from __future__ import annotations

import sys

from tokenmill.engine.memory_plan import state_budget
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.telemetry.memory import available_bytes

_budget = MemoryBudget(0)


def measured_budget() -> MemoryBudget:
    """Returns the process's budget, measured anew.

    To be called when a model has been loaded, and when one was closed: weights take memory that
    states could have. Where the system does not say what it has, there is no bound.
    """
    available = available_bytes()
    _budget.measure(sys.maxsize if available is None else state_budget(available))
    return _budget
