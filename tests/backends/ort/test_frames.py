from __future__ import annotations

import numpy as np
import pytest

from tokenmill.backends.ort.frame_sequences import FrameSequences
from tokenmill.backends.ort.frames import Frame, FramePool
from tokenmill.backends.ort.pages import HEADS_TOKENS_DIM, PageGeometry

GEOMETRY = [
    PageGeometry(kind, 0, HEADS_TOKENS_DIM, 2, 16, np.dtype("float32")) for kind in ("key", "value")
]
TOKEN = 2 * 2 * 16 * 4
"""Bytes of one token of one row."""


@pytest.fixture
def pool() -> FramePool:
    return FramePool(GEOMETRY)


def test_a_frame_is_contiguous_and_takes_memory_in_steps(pool: FramePool) -> None:
    frame = pool.take(3, 65)
    assert [array.shape for array in frame.arrays] == [(3, 2, 65, 16)] * 2
    assert all(array.flags.c_contiguous for array in frame.arrays)
    assert pool.live_bytes == pool.frame_bytes(3, 65) == 3 * 128 * TOKEN
    frame.arrays[0][:], frame.arrays[1][:] = 1, 2
    assert frame.arrays[0].min() == frame.arrays[0].max() == 1


def test_memory_that_nobody_holds_is_used_again(pool: FramePool) -> None:
    old, new = pool.take(2, 65), pool.take(2, 66)
    pool.drop(old)
    assert (pool.live_bytes, pool.spare_bytes) == (2 * 128 * TOKEN, 2 * 128 * TOKEN)
    again = pool.take(2, 67)
    assert again.memory is old.memory
    assert pool.spare_bytes == 0
    pool.drop(new)
    pool.drop(again)
    pool.check_integrity(0)
    assert (pool.live_bytes, pool.spare_bytes) == (0, 0)


def test_much_larger_memory_is_not_used_for_little(pool: FramePool) -> None:
    large, small = pool.take(4, 640), pool.take(8, 640)
    pool.drop(large)
    assert pool.take(1, 64).memory is not large.memory
    pool.drop(small)


def test_a_held_frame_stays(pool: FramePool) -> None:
    frame = pool.take(1, 1)
    pool.hold(frame)
    pool.drop(frame)
    pool.check_integrity(1)
    with pytest.raises(AssertionError, match="count 1 users, and there are 2"):
        pool.check_integrity(2)


@pytest.fixture
def sequences(pool: FramePool) -> FrameSequences:
    return FrameSequences(pool, max_rows=8, max_context=1000)


def block(n: int, value: float) -> list[np.ndarray]:
    return [np.full((2, n, 16), value, np.float32) for _ in GEOMETRY]


def give(pool: FramePool, sequences: FrameSequences, lengths: list[int]) -> list:
    """Opens sequences that look into one frame, as a call would leave them."""
    states = [sequences.find(sequences.open()) for _ in lengths]
    frame: Frame = pool.take(len(lengths), max(lengths))
    for array in frame.arrays:
        array[:] = np.arange(1, len(lengths) + 1)[:, None, None, None]
    sequences.computed(states, lengths, frame)
    pool.drop(frame)
    for state, n in zip(states, lengths, strict=True):
        sequences.commit(state, n)
    return states


def test_the_same_batch_is_the_same_frame(pool: FramePool, sequences: FrameSequences) -> None:
    a, b = give(pool, sequences, [70, 3])
    frame = a.view.frame
    assert sequences.batch([a, b]) == (frame, [0, 1])
    assert sequences.batch([b, a]) == (frame, [1, 0])
    assert b.view.start == 67


def test_another_batch_is_copied_behind_zeros(pool: FramePool, sequences: FrameSequences) -> None:
    a, b, c = give(pool, sequences, [70, 3, 9])
    old = a.view.frame
    frame, order = sequences.batch([c, b])
    assert order == [0, 1]
    assert frame is not old
    for array in frame.arrays:
        assert np.all(array[0] == 3)
        assert np.all(array[1, :, 6:] == 2)
        assert np.all(array[1, :, :6] == 0)
    assert (b.view.start, a.view.frame) == (6, old)
    sequences.check_integrity()


def test_a_shorter_row_breaks_up_the_frame(pool: FramePool, sequences: FrameSequences) -> None:
    a, b = give(pool, sequences, [70, 60])
    frame = a.view.frame
    sequences.truncate(a, 69)
    assert sequences.batch([a, b])[0] is not frame


def test_pages_are_put_into_one_frame_when_they_are_read(
    pool: FramePool, sequences: FrameSequences
) -> None:
    state = sequences.find(sequences.open())
    for i in range(40):
        sequences.append(state, block(16, i), 16)
    assert (state.length, pool.live_bytes) == (640, 0)
    (key, _) = sequences.read(state, 0, 640)
    assert np.array_equal(key[0, :, 0], np.repeat(np.arange(40), 16))
    assert pool.live_bytes == 640 * TOKEN
    assert not state.imported


def test_an_imported_array_is_a_copy(pool: FramePool, sequences: FrameSequences) -> None:
    state, arrays = sequences.find(sequences.open()), block(4, 1)
    sequences.append(state, arrays, 4)
    arrays[0][:] = 9
    assert next(sequences.read(state, 0, 4)).max() == 1


def test_who_stays_behind_leaves_a_large_frame(pool: FramePool, sequences: FrameSequences) -> None:
    ids = [0, 1, 2, 3]
    states = give(pool, sequences, [640, 640, 640, 64])
    for sequence in ids[:3]:
        sequences.close(sequence)
    assert pool.live_bytes == 64 * TOKEN
    assert np.all(next(sequences.read(states[3], 0, 64)) == 4)
    sequences.close_all()
    assert (pool.live_bytes, pool.spare_bytes) == (0, 0)


def test_rows_of_a_coming_step_are_not_copied_twice(
    pool: FramePool, sequences: FrameSequences
) -> None:
    a, b = give(pool, sequences, [64, 640])
    frame = a.view.frame
    sequences.tidy([a, b])
    assert a.view.frame is frame
    sequences.tidy([b])
    assert a.view.frame is not frame


def test_a_fork_shares_the_frame(pool: FramePool, sequences: FrameSequences) -> None:
    (state,) = give(pool, sequences, [64])
    forked = sequences.find(sequences.fork(state, 30))
    assert forked.view.frame is state.view.frame
    assert (forked.length, pool.live_bytes) == (30, 64 * TOKEN)
    sequences.truncate(state, 0)
    assert np.all(next(sequences.read(forked, 0, 30)) == 1)
    sequences.check_integrity()
