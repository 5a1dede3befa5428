"""One call of the session for rows that lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import onnxruntime

from tokenmill.backends.ort.binding import StepBinding
from tokenmill.backends.ort.binding_cache import BindingCache
from tokenmill.backends.ort.call_row import CallResult, CallRow, wanted_logits
from tokenmill.backends.ort.logits_buffer import LogitsBuffer
from tokenmill.backends.ort.session import run_error
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.step_ports import StepPorts

_NEVER_ONE_OVER = 3
"""Up to so many tokens no block of queries leaves one over."""


class Stepper:
    """Fills in inputs, runs the session, cuts the logits into rows.

    Args:
        session: of the decoder.
        ports: its ports, see `step_ports`.
        slots: the rows' memory.
        vocab_size: width of the logits.
        widens: a call may be one token wider than its rows; not where that is seen.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        ports: StepPorts,
        slots: Slots,
        vocab_size: int,
        *,
        widens: bool = True,
    ) -> None:
        self._session, self._slots, self._vocab_size = session, slots, vocab_size
        self._bindings = BindingCache(
            lambda rows, width: StepBinding(session, ports, slots, rows, width)
        )
        self._widens = widens
        self._cuts_rows = ports.chosen is not None
        self._logits = LogitsBuffer(ports.logits.dtype)

    def start(self, calls: Sequence[Sequence[CallRow]]) -> None:
        """Begins a step of at most these calls; logits given out before become invalid."""
        self._logits.start(sum(self._num_logits(call) for call in calls) * self._vocab_size)

    def call(self, first_row: int, rows: Sequence[CallRow]) -> CallResult:
        """Computes one call. Rows of several tokens have no past, or are alone.

        Args:
            first_row: of the slots, where `rows[0]` lives; the others follow.
            rows: all of one token, or all of several.

        Raises:
            BackendError: the runtime failed.
        """
        width = max(len(row.tokens) for row in rows)
        # Attention works on blocks of an even number of queries. A block of one sums in another
        # order, so a number of tokens that leaves one over is never run: it is made even.
        if width % 2 == 0 or width <= _NEVER_ONE_OVER or not self._widens:
            return self._call(first_row, rows, width)
        if max(row.past for row in rows) + width < self._slots.max_context:
            return self._call(first_row, rows, width + 1)
        if len(rows) == 1:
            return self._call_in_two(first_row, rows[0])
        # Only the longest row has no room to be widened.
        parts = [self.call(first_row + i, [row]) for i, row in enumerate(rows)]
        return CallResult(
            [logits for part in parts for logits in part.logits],
            sum(part.seconds for part in parts),
        )

    def _call_in_two(self, row_number: int, row: CallRow) -> CallResult:
        """Computes a row that fills the context, so that there is no room for padding."""
        cut = len(row.tokens) - 2
        pieces = (
            CallRow(row.tokens[:cut], row.past, [o for o in row.offsets if o < cut]),
            CallRow(row.tokens[cut:], row.past + cut, [o - cut for o in row.offsets if o >= cut]),
        )
        head, tail = (
            self._call(row_number, [piece], len(piece.tokens) + len(piece.tokens) % 2)
            for piece in pieces
        )
        logits = np.empty((len(row.offsets), self._vocab_size), np.float32)
        in_head = np.asarray(row.offsets, np.int64) < cut
        logits[in_head], logits[~in_head] = head.logits[0], tail.logits[0]
        return CallResult([logits], head.seconds + tail.seconds)

    def _call(self, first_row: int, rows: Sequence[CallRow], width: int) -> CallResult:
        binding = self._bindings.get(range(first_row, first_row + len(rows)), width)
        chosen: list[int] = []
        for i, row in enumerate(rows):
            count = len(row.tokens)
            self._slots.touch(first_row + i, row.past + width)
            binding.ids[i, :count] = row.tokens
            binding.ids[i, count:] = 0
            # Padding counts as tokens that come later: nothing before them sees them, and the next
            # call overwrites their state.
            binding.lengths[i] = row.past + width - 1
            chosen.extend(i * width + offset for offset in row.offsets)
        if self._cuts_rows:
            logits = self._logits.take(len(chosen), self._vocab_size)
        else:
            logits = self._logits.take(len(rows), width, self._vocab_size)
        binding.fill(chosen, logits)
        began = perf_counter()
        try:
            self._session.run_with_iobinding(binding.io)
        except Exception as error:
            raise run_error(error) from error
        seconds = perf_counter() - began
        return CallResult(wanted_logits(logits, chosen, rows, cut=self._cuts_rows), seconds)

    def _num_logits(self, rows: Sequence[CallRow]) -> int:
        if self._cuts_rows:
            return sum(len(row.offsets) for row in rows)
        # Twice one token more: a call is widened by one, or cut in two.
        return len(rows) * (max((len(row.tokens) for row in rows), default=0) + 2)
