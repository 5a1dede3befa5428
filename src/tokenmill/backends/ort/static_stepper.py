"""One call of a session whose caches are written where it is told."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.ort.binding_cache import BindingCache
from tokenmill.backends.ort.call_row import CallResult, CallRow, wanted_logits
from tokenmill.backends.ort.logits_buffer import LogitsBuffer
from tokenmill.backends.ort.pages import FOLDED
from tokenmill.backends.ort.session import run_error
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.step_ports import StepPort, StepPorts


class StaticBinding:
    """One call's inputs and outputs, for a range of rows and a number of tokens in each.

    Cache and updated cache are bound to the same memory, so that the tokens are written in place.

    Attributes:
        ids: [rows, width], to be filled in.
        write, lengths, positions: likewise; where the rows' new tokens go, their lengths with
            them, and the tokens' positions.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        ports: StepPorts,
        slots: Slots,
        rows: range,
        width: int,
    ) -> None:
        assert ports.write_indices is not None, "the backend refuses graphs without"
        assert ports.kv_lengths is not None, "the backend refuses graphs without"
        self.io = session.io_binding()
        self._ports = ports
        self._logits: tuple[int, tuple[int, ...]] | None = None
        self._inputs: list[tuple[StepPort, NDArray[Any]]] = []
        self.ids = self._input(ports.ids, len(rows), width)
        self.write = self._input(ports.write_indices, len(rows))
        self.lengths = self._input(ports.kv_lengths, len(rows))
        self.positions: NDArray[Any] | None = None
        if ports.positions is not None:
            self.positions = self._input(ports.positions, len(rows), width)
        self._steps = np.arange(width)
        for port, array in self._inputs:
            self._bind(port, array)
        device = slots.memory.device
        for i, (past, present) in enumerate(zip(ports.past, ports.present, strict=True)):
            view = slots.buffers[i].array[rows.start : rows.stop]
            shape = view.shape
            if slots.geometry[i].layout == FOLDED:
                shape = (shape[0], shape[2], shape[3])
            address = view.__array_interface__["data"][0]
            self.io.bind_input(past, *device, view.dtype.type, shape, address)
            self.io.bind_output(present, *device, view.dtype.type, shape, address)

    def fill(self, pasts: Sequence[int], chosen: Sequence[int], logits: NDArray[Any]) -> None:
        """Makes ready to run, once `ids` are set.

        Args:
            pasts: committed tokens of each row.
            chosen: positions in [rows x width] that reach the head, where the graph cuts rows.
            logits: contiguous, where the result goes.
        """
        self.write[:] = pasts
        # Padding counts as tokens that come later: nothing before them sees them, and the next
        # call overwrites their state.
        np.add(self.write, len(self._steps), out=self.lengths)
        if self.positions is not None:
            self.positions[:] = self.write[:, None] + self._steps
        for port, array in self._inputs:
            if port.name in self._ports.copied:
                self._bind(port, array)
        if self._ports.chosen is not None:
            self._chosen = np.array(chosen, np.int64)
            self._bind(self._ports.chosen, self._chosen)
        address = logits.__array_interface__["data"][0]
        if self._logits != (address, logits.shape):
            self._logits = (address, logits.shape)
            name, dtype = self._ports.logits.name, logits.dtype.type
            self.io.bind_output(name, "cpu", 0, dtype, logits.shape, address)

    def _input(self, port: StepPort, *shape: int) -> NDArray[Any]:
        array = np.zeros(shape, port.dtype)
        self._inputs.append((port, array))
        return array

    def _bind(self, port: StepPort, array: NDArray[Any]) -> None:
        address = array.__array_interface__["data"][0]
        self.io.bind_input(port.name, "cpu", 0, array.dtype.type, array.shape, address)


class StaticStepper:
    """Fills in inputs, runs the session, cuts the logits into rows.

    Args:
        session: of the decoder.
        ports: its ports, see `step_ports`.
        slots: the rows' memory.
        vocab_size: width of the logits.

    Attributes:
        vocab_size: width of the logits.
        run_options: of every call; None takes the runtime's own.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        ports: StepPorts,
        slots: Slots,
        vocab_size: int,
    ) -> None:
        self._session, self._ports, self._slots = session, ports, slots
        self.vocab_size = vocab_size
        self._bindings = BindingCache(
            lambda rows, width: StaticBinding(session, ports, slots, rows, width)
        )
        self._bound_memory = slots.memory
        self._logits = LogitsBuffer(ports.logits.dtype)
        self.run_options: onnxruntime.RunOptions | None = None

    def start(self, calls: Sequence[Sequence[CallRow]]) -> None:
        """Begins a step of at most these calls; logits given out before become invalid."""
        self._logits.start(sum(self._num_logits(call) for call in calls) * self.vocab_size)

    def call(self, first_row: int, rows: Sequence[CallRow]) -> CallResult:
        """Computes one call. Past and width of every row are at most the slots' capacity.

        Args:
            first_row: of the slots, where `rows[0]` lives; the others follow.
            rows: of any number of tokens; shorter ones are padded behind.

        Raises:
            BackendError: the runtime failed.
        """
        width = max(len(row.tokens) for row in rows)
        binding = self._binding(range(first_row, first_row + len(rows)), width)
        chosen: list[int] = []
        for i, row in enumerate(rows):
            count = len(row.tokens)
            assert row.past + width <= self._slots.capacity, "the plan leaves room for padding"
            self._slots.touch(first_row + i, row.past + width)
            binding.ids[i, :count] = row.tokens
            binding.ids[i, count:] = 0
            chosen.extend(i * width + offset for offset in row.offsets)
        cut = self._ports.chosen is not None
        shape = (len(chosen),) if cut else (len(rows), width)
        logits = self._logits.take(*shape, self.vocab_size)
        binding.fill([row.past for row in rows], chosen, logits)
        began = perf_counter()
        try:
            self._session.run_with_iobinding(binding.io, self.run_options)
        except Exception as error:
            raise run_error(error) from error
        seconds = perf_counter() - began
        return CallResult(wanted_logits(logits, chosen, rows, cut=cut), seconds)

    def _binding(self, rows: range, width: int) -> StaticBinding:
        if self._bound_memory is not self._slots.memory:
            self._bound_memory = self._slots.memory
            self._bindings.clear()
        return self._bindings.get(rows, width)

    def _num_logits(self, rows: Sequence[CallRow]) -> int:
        if self._ports.chosen is not None:
            return sum(len(row.offsets) for row in rows)
        return len(rows) * max((len(row.tokens) for row in rows), default=0)
