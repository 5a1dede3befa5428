"""A call for sequences whose rows lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.slot_sequences import SlotSequence


class RowStepper(Protocol):
    """Computes rows that lie side by side."""

    def call(self, first_row: int, rows: Sequence[CallRow]) -> CallResult:
        """Computes the rows from `first_row` of the slots on."""


def compute_in_rows(
    stepper: RowStepper, states: Sequence[SlotSequence], rows: Sequence[CallRow]
) -> CallResult:
    """Computes the rows in the order in which they lie, and gives logits in the order asked for.

    The tokens become pending.
    """
    order = sorted(range(len(states)), key=lambda i: states[i].row)
    result = stepper.call(states[order[0]].row, [rows[i] for i in order])
    logits = dict(zip(order, result.logits, strict=True))
    for state, row in zip(states, rows, strict=True):
        state.pending = len(row.tokens)
    return result._replace(logits=[logits[i] for i in range(len(states))])
