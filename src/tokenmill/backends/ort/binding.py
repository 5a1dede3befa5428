"""I/O bindings that are made once and whose inputs are then changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.step_ports import StepPort, StepPorts


class StepBinding:
    """One call's inputs and outputs, for a range of rows and a number of tokens in each.

    Attributes:
        ids: [rows, width], to be filled in.
        lengths: int32 [rows], each row's length with its new tokens and padding, less one.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        ports: StepPorts,
        slots: Slots,
        rows: range,
        width: int,
    ) -> None:
        self._ports = ports
        self.device, self.device_id = slots.memory.device
        self.io = session.io_binding()
        self.ids = np.zeros((len(rows), width), ports.ids.dtype)
        self.lengths = np.zeros(len(rows), np.int32)
        self._total = np.zeros((), np.int32)
        positions = np.int64 if ports.positions is None else ports.positions.dtype
        self._positions = np.zeros((len(rows), width), positions)
        self._steps = np.arange(1 - width, 1, dtype=self._positions.dtype)
        self._mask: NDArray[Any] | None = None
        self._chosen: NDArray[np.int64] | None = None
        self._logits: tuple[int, tuple[int, ...]] | None = None
        inputs = (
            (ports.ids, self.ids),
            (ports.lengths, self.lengths),
            (ports.total, self._total),
            (ports.positions, self._positions),
        )
        present_inputs = [(port, array) for port, array in inputs if port is not None]
        for port, array in present_inputs:
            self._bind_input(port, array)
        self._copied = [pair for pair in present_inputs if pair[0].name in ports.copied]
        for buffer, past, present in zip(slots.buffers, ports.past, ports.present, strict=True):
            view = buffer.array[rows.start : rows.stop]
            dtype, shape, pointer = view.dtype.type, view.shape, view.ctypes.data
            self.io.bind_input(past, self.device, self.device_id, dtype, shape, pointer)
            self.io.bind_output(present, self.device, self.device_id, dtype, shape, pointer)

    def fill(self, chosen: list[int], logits: NDArray[Any]) -> None:
        """Makes ready to run, once `ids` and `lengths` are set.

        Args:
            chosen: positions in [rows x width] that reach the head, where the graph cuts rows.
            logits: contiguous, where the result goes.
        """
        total = int(self.lengths.max()) + 1
        self._total[...] = total
        ports = self._ports
        if ports.positions is not None:
            np.add(self.lengths[:, None], self._steps, out=self._positions)
        if ports.mask is not None:
            mask = np.arange(total) <= self.lengths[:, None]
            self._mask = mask.astype(ports.mask.dtype)
            self._bind_input(ports.mask, self._mask)
        if ports.chosen is not None:
            same_size = self._chosen is not None and len(self._chosen) == len(chosen)
            if not same_size or ports.chosen.name in ports.copied:
                self._chosen = np.array(chosen, np.int64)
                self._bind_input(ports.chosen, self._chosen)
            else:
                assert self._chosen is not None, "it is of the same size"
                self._chosen[:] = chosen
        for port, array in self._copied:
            self._bind_input(port, array)
        address = logits.__array_interface__["data"][0]
        if self._logits != (address, logits.shape):
            self._logits = (address, logits.shape)
            name, dtype = ports.logits.name, logits.dtype.type
            self.io.bind_output(name, "cpu", 0, dtype, logits.shape, address)

    def _bind_input(self, port: StepPort, array: NDArray[Any]) -> None:
        self.io.bind_input(port.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
