"""Compares a rewritten graph with the file it was made from, on a few hundred tokens.

Recognition evaluates one layer at a time; this runs the whole: prompts of several lengths in one
call, steps of all rows, chunks on top of a past, and one row beyond the windows of attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.graph.ports import (
    LENGTHS_INPUT,
    POSITIONS_INPUT,
    TOTAL_INPUT,
    DecoderPorts,
)
from tokenmill.backends.graph.rewrite import Probe
from tokenmill.backends.ort.threads import usable_processors

_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_PROVIDERS = ("CPUExecutionProvider",)

_PROMPTS = (11, 4, 7)
"""Tokens of each row's prompt."""
_AFTER = (1, 4, 1)
"""Tokens of the calls that follow; those of one token are of all rows at once."""
_MAX_LONG = 1536
"""A row to look beyond a window has at most as many tokens."""
_LOOKED_AT = 8
"""Tokens at the end of a prompt whose logits are compared."""

_TOLERANCES = {"float32": 1e-4, "float16": 2e-2}
"""Of logits, relative to the largest, by the type of the state. Half precision rounds every sum
to three digits, and both graphs add up in other orders."""
_ROUNDED = 5e-2
"""The same where activations are rounded to 8 bits: a last bit that differs moves them by one."""
_ROUNDING = {"DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul"}

Logits = list[NDArray[np.float32]]
"""Of the calls of one row, in order."""


def make_probe() -> Probe:
    """Returns the probe that runs on this ONNX Runtime's CPU provider."""
    return Probe(f"onnxruntime {onnxruntime.__version__} 1", compare)


def compare(file: Path, graph: bytes, ports: DecoderPorts) -> str | None:
    """Runs both graphs, one after the other; see `Probe`."""
    windows, is_rounded = _look(graph)
    plan = _plan(windows, ports.context_length)
    try:
        before = _Plain(_session(str(file), file.parent), ports)
        texts = _texts(plan, before.vocab_size)
        wanted = [before.run(text, calls) for text, calls in zip(texts, plan, strict=True)]
        dtype = before.dtype
        del before
    except Exception as error:  # ONNX Runtime's own, which have no common type
        return f"the file itself does not run: {_first_line(error)}"
    try:
        found = _Shared(_session(graph, file.parent), ports, plan).run(texts, plan)
    except Exception as error:
        return f"the rewritten graph does not run: {_first_line(error)}"
    tolerance = _ROUNDED if is_rounded else _TOLERANCES[str(dtype)]
    return _difference(wanted, found, tolerance)


def _difference(wanted: Sequence[Logits], found: Sequence[Logits], tolerance: float) -> str | None:
    most = max(float(np.abs(call).max()) for row in wanted for call in row)
    for number, (row, other) in enumerate(zip(wanted, found, strict=True)):
        for call, (a, b) in enumerate(zip(row, other, strict=True)):
            gap = float(np.abs(a - b).max())
            if not gap <= tolerance * most:
                return (
                    f"rewritten, logits differ by {gap:.2g} of {most:.2g} "
                    f"in call {call + 1} of row {number + 1}"
                )
    return None


def _look(graph: bytes) -> tuple[set[int], bool]:
    """Returns the windows of attention, and whether products round activations to 8 bits."""
    import onnx

    windows, is_rounded = set[int](), False
    for node in onnx.ModelProto.FromString(graph).graph.node:
        for attribute in node.attribute:
            if attribute.name == "local_window_size":
                windows.add(attribute.i)
            if attribute.name == "accuracy_level" and attribute.i == 4:
                is_rounded = True
        is_rounded |= node.op_type in _ROUNDING
    return windows, is_rounded


def _plan(windows: set[int], context: int) -> list[tuple[int, ...]]:
    """Returns the calls of each row: tokens in each, the prompt first."""
    most = min(context or _MAX_LONG, _MAX_LONG) - sum(_AFTER)
    rows = [*_PROMPTS, *(window + 3 for window in sorted(windows))]
    return [(min(prompt, most), *_AFTER) for prompt in rows if prompt <= most or prompt < 16]


def _texts(plan: Sequence[tuple[int, ...]], vocab_size: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab_size, sum(calls)) for calls in plan]


def _session(model: str | bytes, weights: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_processors()
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY + 1
    options.enable_mem_pattern = False
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights.absolute()))
    return onnxruntime.InferenceSession(model, options, providers=list(_PROVIDERS))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)


class _Inputs(NamedTuple):
    """The types of a session's inputs, by name."""

    dtypes: dict[str, np.dtype[Any]]

    def typed(self, *named: tuple[str | None, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Returns the arrays that the session has an input for, in its types."""
        return {
            name: np.array(array, self.dtypes[name], order="C")
            for name, array in named
            if name is not None and name in self.dtypes
        }


_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


def _inputs(session: Any) -> _Inputs:
    return _Inputs({port.name: np.dtype(_TYPES[port.type]) for port in session.get_inputs()})


class _Plain:
    """The file as it is: one row, its past handed over from call to call."""

    def __init__(self, session: Any, ports: DecoderPorts) -> None:
        self._session, self._ports, self._inputs = session, ports, _inputs(session)
        self.dtype = self._inputs.dtypes[ports.state[0].past_key]
        shapes = {port.name: port.shape for port in session.get_outputs()}
        last = shapes[ports.logits][-1]
        self.vocab_size = last if isinstance(last, int) else 100

    def run(self, text: NDArray[np.int64], calls: Sequence[int]) -> Logits:
        """Returns the logits at the end of the prompt, and of all tokens after it."""
        ports, past, out = self._ports, 0, Logits()
        state = [
            np.zeros((1, layer.num_kv_heads, 0, layer.head_dim), self.dtype)
            for layer in ports.state
            for _ in range(2)
        ]
        names = [name for layer in ports.state for name in layer.past]
        outputs = [name for layer in ports.state for name in layer.present]
        for count in calls:
            total = past + count
            feeds = self._inputs.typed(
                (ports.input_ids, text[None, past:total]),
                (ports.attention_mask, np.ones((1, total))),
                (ports.position_ids, np.arange(past, total)[None]),
                (ports.use_cache_branch, np.array([past > 0])),
            )
            feeds.update(zip(names, state, strict=True))
            logits, *state = self._session.run([ports.logits, *outputs], feeds)
            out.append(np.asarray(logits[0, -_LOOKED_AT:], np.float32))
            past = total
        return out


class _Shared:
    """The rewritten graph: all rows in buffers, whose spare capacity holds no numbers."""

    def __init__(self, session: Any, ports: DecoderPorts, plan: Sequence[Sequence[int]]) -> None:
        self._session, self._ports, self._inputs = session, ports, _inputs(session)
        capacity = max(sum(calls) for calls in plan) + max(_PROMPTS)
        self._buffers = [
            np.full(
                (len(plan), layer.num_kv_heads, capacity, layer.head_dim),
                np.nan,
                self._inputs.dtypes[layer.past_key],
            )
            for layer in ports.state
            for _ in range(2)
        ]

    def run(
        self, texts: Sequence[NDArray[np.int64]], plan: Sequence[tuple[int, ...]]
    ) -> list[Logits]:
        """Returns the same as `_Plain.run` for every row."""
        out = [Logits() for _ in texts]
        past = [0] * len(texts)
        for number in range(len(plan[0])):
            counts = [calls[number] for calls in plan]
            news = [text[p : p + n] for text, p, n in zip(texts, past, counts, strict=True)]
            for rows in _together(number, counts):
                found = self._call(rows, [news[i] for i in rows], [past[i] for i in rows])
                for i, logits in zip(rows, found, strict=True):
                    out[i].append(logits)
            past = [p + n for p, n in zip(past, counts, strict=True)]
        return out

    def _call(
        self, rows: range, news: Sequence[NDArray[np.int64]], past: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        ports = self._ports
        width = max(len(new) for new in news)
        ids = np.zeros((len(rows), width), np.int64)
        chosen, counts = [], []
        for i, new in enumerate(news):
            ids[i, : len(new)] = new
            first = max(0, len(new) - _LOOKED_AT)
            chosen += [i * width + at for at in range(first, len(new))]
            counts.append(len(new) - first)
        starts = np.array(past)
        feeds = self._inputs.typed(
            (ports.input_ids, ids),
            (ports.position_ids, starts[:, None] + np.arange(width)),
            (LENGTHS_INPUT, starts + width - 1),
            (TOTAL_INPUT, np.array(starts.max() + width)),
            (POSITIONS_INPUT, np.array(chosen)),
        )
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        names = [
            pair for layer in ports.state for pair in zip(layer.past, layer.present, strict=True)
        ]
        for (name, present), buffer in zip(names, self._buffers, strict=True):
            view = buffer[rows.start : rows.stop]
            place = "cpu", 0, view.dtype.type, view.shape, view.ctypes.data
            binding.bind_input(name, *place)
            binding.bind_output(present, *place)
        binding.bind_output(ports.logits, "cpu")
        self._session.run_with_iobinding(binding)
        logits = np.asarray(binding.get_outputs()[-1].numpy(), np.float32)
        flat = logits.reshape(-1, logits.shape[-1])
        if POSITIONS_INPUT not in feeds:
            flat = flat[chosen]
        return np.split(flat, np.cumsum(counts)[:-1])


def _together(number: int, counts: Sequence[int]) -> list[range]:
    """Returns which rows go into one call: prompts of a few tokens, and all of one token."""
    if number == 0:
        short = sum(count <= max(_PROMPTS) for count in counts)
        return [range(short), *(range(i, i + 1) for i in range(short, len(counts)))]
    if max(counts) == 1:
        return [range(len(counts))]
    return [range(i, i + 1) for i in range(len(counts))]
