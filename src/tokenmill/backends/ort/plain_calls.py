"""Calls whose state goes from frame to frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.frame_sequences import FrameSequence, FrameSequences
from tokenmill.backends.ort.frames import FramePool
from tokenmill.backends.ort.plain_stepper import PlainStepper


class PlainCalls:
    """Computes rows, and makes the new frame what their sequences wait to commit.

    Args:
        stepper: runs the session.
        sequences: to which all rows belong.
        pool: of their frames.

    Attributes:
        several_with_past: the graph takes several tokens at once on top of a past; else they are
            computed one by one.
    """

    def __init__(self, stepper: PlainStepper, sequences: FrameSequences, pool: FramePool) -> None:
        self.stepper, self._sequences, self._pool = stepper, sequences, pool
        self.several_with_past = True

    def compute(self, states: Sequence[FrameSequence], rows: Sequence[CallRow]) -> CallResult:
        """Computes one call. Rows of several tokens have no past, or are alone.

        Raises:
            BackendError: the runtime failed; nothing is pending.
        """
        if len(rows[0].tokens) > 1 and rows[0].past and not self.several_with_past:
            return self._one_by_one(states[0], rows[0])
        past, order = self._sequences.batch(states)
        width = max(len(row.tokens) for row in rows)
        present = self._pool.take(len(rows), width + (0 if past is None else past.tokens))
        try:
            result = self.stepper.call(past, [rows[i] for i in order], present)
            counts = [len(rows[i].tokens) for i in order]
            self._sequences.computed([states[i] for i in order], counts, present)
        finally:
            self._pool.drop(present)
        logits = dict(zip(order, result.logits, strict=True))
        return result._replace(logits=[logits[i] for i in range(len(rows))])

    def _one_by_one(self, state: FrameSequence, row: CallRow) -> CallResult:
        past, _ = self._sequences.batch([state])
        assert past is not None, "the row has a past"
        self._pool.hold(past)
        parts = [np.empty((0, self.stepper.vocab_size), np.float32)]
        found: dict[int, NDArray[np.float32]] = {}
        seconds = 0.0
        try:
            for i, token in enumerate(row.tokens):
                present = self._pool.take(1, past.tokens + 1)
                wanted = (0,) if i in row.offsets else ()
                try:
                    one = CallRow([token], row.past + i, wanted)
                    result = self.stepper.call(past, [one], present)
                finally:
                    self._pool.drop(past)
                    past = present
                found[i] = result.logits[0]
                seconds += result.seconds
            self._sequences.computed([state], [len(row.tokens)], past)
        finally:
            self._pool.drop(past)
        parts += [found[offset] for offset in row.offsets]
        return CallResult([np.concatenate(parts)], seconds)
