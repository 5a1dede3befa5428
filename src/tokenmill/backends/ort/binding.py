"""I/O bindings that are made once and whose inputs are then changed in place."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.graph.ports import LENGTHS_INPUT, POSITIONS_INPUT, TOTAL_INPUT
from tokenmill.backends.ort.slots import Slots
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import Component, Role

_CACHED_BINDINGS = 16


class StepPorts(NamedTuple):
    """The names under which a session takes a step's inputs; None where it has no such port.

    Attributes:
        lengths, total: attention lengths, in place of `mask`.
        chosen: which positions reach the head.
        past, present: of the buffers, in the order of `Slots.buffers`.
    """

    ids: str
    logits: str
    logits_dtype: np.dtype[Any]
    mask: str | None
    mask_dtype: np.dtype[Any]
    positions: str | None
    lengths: str | None
    total: str | None
    chosen: str | None
    past: tuple[str, ...]
    present: tuple[str, ...]


def step_ports(decoder: Component, session: onnxruntime.InferenceSession) -> StepPorts:
    """Returns the ports as the session has them, after rewrites.

    Raises:
        UnsupportedModel: the session asks for an input that nothing here can give.
    """
    inputs = {port.name for port in session.get_inputs()}

    def own(role: Role) -> str | None:
        port = decoder.find(role)
        return port.name if port is not None and port.name in inputs else None

    def added(name: str) -> str | None:
        return name if name in inputs else None

    mask = decoder.find(Role.ATTENTION_MASK)
    past: list[str] = []
    present: list[str] = []
    layers = sorted({b.layer for b in decoder.bindings if b.layer is not None})
    for layer in layers:
        for key, value, names in (
            (Role.PAST_KEY, Role.PAST_VALUE, past),
            (Role.PRESENT_KEY, Role.PRESENT_VALUE, present),
        ):
            names += [decoder.port(key, layer).name, decoder.port(value, layer).name]
    logits = decoder.port(Role.LOGITS)
    ports = StepPorts(
        ids=decoder.port(Role.INPUT_IDS).name,
        logits=logits.name,
        logits_dtype=np.dtype(logits.dtype),
        mask=own(Role.ATTENTION_MASK),
        mask_dtype=np.dtype("int64" if mask is None else mask.dtype),
        positions=own(Role.POSITION_IDS),
        lengths=added(LENGTHS_INPUT),
        total=added(TOTAL_INPUT),
        chosen=added(POSITIONS_INPUT),
        past=tuple(past),
        present=tuple(present),
    )
    known = {ports.ids, ports.mask, ports.positions, ports.lengths, ports.total, ports.chosen}
    if unknown := inputs - known - set(past):
        raise UnsupportedModel(
            f"the decoder {decoder.file.name} has inputs without a use: "
            f"{', '.join(sorted(unknown))}",
            fix="Its package must bind them to roles",
        )
    return ports


class StepBinding:
    """One call's inputs and outputs, for a range of rows and a number of tokens in each.

    Attributes:
        ids: int64 [rows, width], to be filled in.
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
        self.ids = np.zeros((len(rows), width), np.int64)
        self.lengths = np.zeros(len(rows), np.int32)
        self._total = np.zeros((), np.int32)
        self._positions = np.zeros((len(rows), width), np.int64)
        self._steps = np.arange(1 - width, 1)
        self._mask: NDArray[Any] | None = None
        self._chosen: NDArray[np.int64] | None = None
        self._logits: tuple[int, tuple[int, ...]] | None = None
        for name, array in (
            (ports.ids, self.ids),
            (ports.lengths, self.lengths),
            (ports.total, self._total),
            (ports.positions, self._positions),
        ):
            if name is not None:
                self._bind_input(name, array)
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
            self._mask = mask.astype(ports.mask_dtype)
            self._bind_input(ports.mask, self._mask)
        if ports.chosen is not None:
            if self._chosen is None or len(self._chosen) != len(chosen):
                self._chosen = np.array(chosen, np.int64)
                self._bind_input(ports.chosen, self._chosen)
            else:
                self._chosen[:] = chosen
        address = logits.__array_interface__["data"][0]
        if self._logits != (address, logits.shape):
            self._logits = (address, logits.shape)
            self.io.bind_output(ports.logits, "cpu", 0, logits.dtype.type, logits.shape, address)

    def _bind_input(self, name: str, array: NDArray[Any]) -> None:
        self.io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


class BindingCache:
    """The bindings used last, since making one takes longer than all else that Python does."""

    def __init__(
        self, session: onnxruntime.InferenceSession, ports: StepPorts, slots: Slots
    ) -> None:
        self._session, self._ports, self._slots = session, ports, slots
        self._bindings: OrderedDict[tuple[int, int, int], StepBinding] = OrderedDict()

    def get(self, rows: range, width: int) -> StepBinding:
        """Returns the binding for rows of `width` new tokens each."""
        key = rows.start, rows.stop, width
        binding = self._bindings.get(key)
        if binding is None:
            binding = StepBinding(self._session, self._ports, self._slots, rows, width)
            self._bindings[key] = binding
            if len(self._bindings) > _CACHED_BINDINGS:
                self._bindings.popitem(last=False)
        else:
            self._bindings.move_to_end(key)
        return binding
