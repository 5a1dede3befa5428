"""What sequences cost in committed memory, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.decoding import random_tokens, step
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.device_memory import PAGE_BYTES
from tokenmill.backends.ort.slots import Slots
from tokenmill.core.errors import OutOfMemory, UnsupportedModel
from tokenmill.core.rows import Logits
from tokenmill.package.model_package import AttentionState

_SMOLLM2 = [AttentionState(layer, 3, 64, "float32") for layer in range(30)]


def committed(slots: Slots) -> int:
    """Returns the resident bytes of the slots' mapping, from /proc/self/smaps."""
    address = slots.buffers[0].array.ctypes.data
    for entry in Path("/proc/self/smaps").read_text().split("VmFlags"):
        lines = entry.splitlines()
        for i, line in enumerate(lines):
            first, _, rest = line.partition("-")
            if rest and all(c in "0123456789abcdef" for c in first):
                if int(first, 16) <= address < int(rest.split()[0], 16):
                    rss = next(x for x in lines[i:] if x.startswith("Rss:"))
                    return int(rss.split()[1]) * 1024
                break
    raise AssertionError("the slots have no mapping")


def write_tokens(slots: Slots, row: int, start: int, stop: int) -> None:
    arrays = [np.ones((3, stop - start, 64), np.float32) for _ in slots.buffers]
    slots.write(row, start, arrays)


def test_100_tokens_in_a_slot_of_8192_commit_at_most_10_mb() -> None:
    slots = Slots(_SMOLLM2, max_rows=8, max_context=8192)
    assert committed(slots) < 100_000
    write_tokens(slots, 3, 0, 100)
    assert 4_600_000 <= committed(slots) <= 10_000_000
    assert committed(slots) <= slots.committed_bytes([100]) + 2 * PAGE_BYTES
    slots.shrink(3, 0)
    assert committed(slots) < 100_000


def test_shrinking_gives_back_whole_pages_and_keeps_what_stays() -> None:
    slots = Slots(_SMOLLM2, max_rows=2, max_context=512)
    write_tokens(slots, 0, 0, 400)
    write_tokens(slots, 1, 0, 100)
    slots.shrink(0, 37)
    assert committed(slots) == slots.committed_bytes([37, 100])
    for buffer in slots.buffers:
        assert buffer.array[0, :, :37].min() == buffer.array[1, :, :100].min() == 1
        assert buffer.array[0, :, 48:].max() == 0


def test_a_moved_row_leaves_nothing_behind() -> None:
    slots = Slots(_SMOLLM2[:2], max_rows=3, max_context=512)
    write_tokens(slots, 2, 0, 300)
    slots.exchange(2, 300, 0, 0)
    assert slots.touched == [300, 0, 0]
    assert committed(slots) == slots.committed_bytes([300])
    assert all(buffer.array[0, :, :300].min() == 1 for buffer in slots.buffers)


def test_rows_of_different_lengths_exchange() -> None:
    slots = Slots(_SMOLLM2[:1], max_rows=2, max_context=512)
    write_tokens(slots, 0, 0, 300)
    slots.write(1, 0, [np.full((3, 20, 64), 2, np.float32)] * 2)
    slots.exchange(0, 300, 1, 20)
    assert slots.touched == [20, 300]
    for buffer in slots.buffers:
        assert np.all(buffer.array[0, :, :20] == 2)
        assert np.all(buffer.array[1, :, :300] == 1)
    assert committed(slots) == slots.committed_bytes([20, 300])


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, "float32"), (80, "float16"), (10, "int8")])
def test_every_head_starts_on_a_page(head_dim: int, dtype: str) -> None:
    slots = Slots([AttentionState(0, 3, head_dim, dtype)], max_rows=2, max_context=100)
    assert slots.capacity >= 100
    assert slots.buffers[0].strip % PAGE_BYTES == 0
    assert slots.buffers[0].array.dtype == dtype


def test_layers_may_differ_in_geometry() -> None:
    layers = [AttentionState(0, 3, 64, "float32"), AttentionState(1, 1, 80, "float16")]
    slots = Slots(layers, max_rows=2, max_context=100)
    assert [buffer.array.shape for buffer in slots.buffers[::2]] == [
        (2, 3, slots.capacity, 64),
        (2, 1, slots.capacity, 80),
    ]
    buffers = slots.buffers
    ends = [buffer.start + buffer.array.nbytes for buffer in buffers]
    assert [buffer.start for buffer in buffers[1:]] == ends[:-1]


def test_state_of_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="bfloat16 in layer 4"):
        Slots([AttentionState(4, 1, 64, "bfloat16")], max_rows=1, max_context=10)


def test_more_address_space_than_there_is_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="address space"):
        Slots(_SMOLLM2, max_rows=2**20, max_context=2**24)


def test_a_closed_sequence_gives_its_memory_back(tmp_path: Path) -> None:
    spec = TinySpec(context=4096, head_dim=64, hidden=64, heads=2, kv_heads=2)
    backend = OrtBackend(make_package(tmp_path, spec), BackendConfig(threads=1, max_rows=4))
    slots = backend._slots
    keep, close = backend.open(), backend.open()
    step(backend, keep, random_tokens(50), Logits.NONE)
    before = committed(slots)
    step(backend, close, random_tokens(1000), Logits.NONE)
    assert committed(slots) >= before + 2 * spec.layers * 2 * 1000 * 64 * 4
    backend.truncate(close, 100)
    assert committed(slots) == backend.limits.bytes([50, 100])
    backend.close(close)
    assert committed(slots) == before == backend.limits.bytes([50])
    backend.shutdown()
    assert committed(slots) == 0
