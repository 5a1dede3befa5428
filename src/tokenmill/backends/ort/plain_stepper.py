"""One call of a session whose present is its past with the new tokens appended."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.ort.call_row import CallResult, CallRow, wanted_logits
from tokenmill.backends.ort.frames import Frame
from tokenmill.backends.ort.logits_buffer import LogitsBuffer
from tokenmill.backends.ort.pages import PageGeometry
from tokenmill.backends.ort.session import run_error
from tokenmill.backends.ort.step_ports import StepPorts

_CPU = ("cpu", 0)


class PlainStepper:
    """Binds past and present, fills in inputs, runs the session, cuts the logits into rows.

    Rows end together: what is shorter has padding in front, which the attention mask hides.

    Args:
        session: of the decoder.
        ports: its ports, see `step_ports`.
        geometry: of the state.
        vocab_size: width of the logits.

    Attributes:
        vocab_size: width of the logits.
        cache_first: the branch that reads a past also computes a first chunk.
        run_options: of every call; None takes the runtime's own.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        ports: StepPorts,
        geometry: Sequence[PageGeometry],
        vocab_size: int,
    ) -> None:
        self._session, self._ports, self.vocab_size = session, ports, vocab_size
        self._geometry = tuple(geometry)
        self._logits = LogitsBuffer(ports.logits.dtype)
        self.cache_first = False
        self.run_options: onnxruntime.RunOptions | None = None

    @property
    def cuts_rows(self) -> bool:
        """Whether only wanted rows reach the head."""
        return self._ports.chosen is not None

    def start(self, calls: Sequence[Sequence[CallRow]]) -> None:
        """Begins a step of at most these calls; logits given out before become invalid."""
        self._logits.start(sum(self._num_logits(call) for call in calls) * self.vocab_size)

    def call(self, past: Frame | None, rows: Sequence[CallRow], present: Frame) -> CallResult:
        """Computes one call.

        Args:
            past: rows as in `rows`, each ending at the frame's end; None where all are empty.
            rows: where there is a past, all have the same number of tokens.
            present: as many rows, and the tokens of the past and of the longest row.

        Raises:
            BackendError: the runtime failed.
        """
        io = self._session.io_binding()
        width = present.tokens - (0 if past is None else past.tokens)
        inputs, chosen = self._inputs(rows, width, present.tokens)
        if self._ports.use_cache is not None:
            inputs[self._ports.use_cache.name] = np.array([self.cache_first or past is not None])
        olds = past.arrays if past is not None else self._nothing(len(rows))
        inputs |= dict(zip(self._ports.past, olds, strict=True))
        if self.cuts_rows:
            logits = self._logits.take(len(chosen), self.vocab_size)
        else:
            logits = self._logits.take(len(rows), width, self.vocab_size)
        outputs = dict(zip(self._ports.present, present.arrays, strict=True))
        outputs[self._ports.logits.name] = logits
        for arrays, bind in ((inputs, io.bind_input), (outputs, io.bind_output)):
            for name, array in arrays.items():
                address = array.__array_interface__["data"][0]
                bind(name, *_CPU, array.dtype.type, array.shape, address)
        began = perf_counter()
        try:
            self._session.run_with_iobinding(io, self.run_options)
        except Exception as error:
            raise run_error(error) from error
        seconds = perf_counter() - began
        return CallResult(wanted_logits(logits, chosen, rows, cut=self.cuts_rows), seconds)

    def _inputs(
        self, rows: Sequence[CallRow], width: int, total: int
    ) -> tuple[dict[str, NDArray[Any]], list[int]]:
        """Returns the inputs but for the state, and the positions of [rows x width] wanted."""
        ports = self._ports
        ids = np.zeros((len(rows), width), ports.ids.dtype)
        starts = np.empty(len(rows), np.int64)
        chosen: list[int] = []
        for i, row in enumerate(rows):
            count = len(row.tokens)
            ids[i, width - count :] = row.tokens
            starts[i] = total - row.past - count
            first = i * width + width - count
            chosen.extend(first + offset for offset in row.offsets)
        inputs: dict[str, NDArray[Any]] = {ports.ids.name: ids}
        if ports.mask is not None:
            mask = np.arange(total) >= starts[:, None]
            inputs[ports.mask.name] = mask.astype(ports.mask.dtype)
        if ports.positions is not None:
            positions = np.arange(total - width, total) - starts[:, None]
            inputs[ports.positions.name] = np.maximum(positions, 0).astype(ports.positions.dtype)
        if ports.chosen is not None:
            inputs[ports.chosen.name] = np.array(chosen, np.int64)
        return inputs, chosen

    def _nothing(self, rows: int) -> list[NDArray[Any]]:
        return [np.empty((rows, like.heads, 0, like.dim), like.dtype) for like in self._geometry]

    def _num_logits(self, rows: Sequence[CallRow]) -> int:
        if self.cuts_rows:
            return sum(len(row.offsets) for row in rows)
        return len(rows) * max((len(row.tokens) for row in rows), default=0)
