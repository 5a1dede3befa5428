"""Sequences that look into frames: their state is a part of one row of what a call gave."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.frames import Frame, FramePool
from tokenmill.backends.ort.sequences import OpenSequence, Sequences
from tokenmill.core.ids import SequenceId

_MAX_WASTE = 2
"""A frame may be so many times larger than what is looked at."""


class View(NamedTuple):
    """Where a sequence's first token stands; the others follow. Before it is padding."""

    frame: Frame
    row: int
    start: int


@dataclass(slots=True, eq=False)
class FrameSequence(OpenSequence):
    """A sequence and where its state is.

    Attributes:
        view: of the committed tokens, but for imported ones; None where there are none.
        next_view: of committed and pending tokens.
        imported: arrays of pages behind the view, not in a frame yet.
    """

    view: View | None = None
    next_view: View | None = None
    imported: list[list[NDArray[Any]]] = field(default_factory=list)

    @property
    def viewed(self) -> int:
        """Committed tokens that are in a frame."""
        return self.length - sum(int(arrays[0].shape[1]) for arrays in self.imported)


class FrameSequences(Sequences[FrameSequence]):
    """Frames are shared by all who look into them; nothing is copied until a batch changes.

    Args:
        pool: of the frames.
        max_rows: most sequences open at once.
        max_context: most tokens in one.
    """

    def __init__(self, pool: FramePool, max_rows: int, max_context: int) -> None:
        super().__init__(max_rows, pool.geometry)
        self._pool, self._max_context = pool, max_context

    def batch(self, states: Sequence[FrameSequence]) -> tuple[Frame | None, list[int]]:
        """Brings the committed tokens of these sequences into one frame, each at its end.

        A frame whose rows they are already is taken as it is; else they are copied into a new one.

        Returns:
            The frame, or None where no sequence has a token; and the sequences in the order of
            its rows, as indices into `states`.
        """
        order = list(range(len(states)))
        if not any(state.length for state in states):
            return None, order
        frame = _common_frame(states)
        if frame is None:
            return self._gather(states), order
        order.sort(key=lambda i: _row(states[i]))
        return frame, order

    def computed(self, states: Sequence[FrameSequence], counts: Sequence[int], to: Frame) -> None:
        """Notes that a call wrote the rows of `to`: `counts` pending tokens in each.

        Args:
            states: in the order of the frame's rows.
            counts: new tokens of each; they end where the frame ends.
            to: what the call gave.
        """
        for row, (state, n) in enumerate(zip(states, counts, strict=True)):
            self.discard(state)
            state.pending = n
            state.next_view = self._hold(View(to, row, to.tokens - state.length - n))

    def tidy(self, busy: Collection[FrameSequence] = ()) -> None:
        """Copies sequences out of frames that are mostly padding or rows of nobody.

        Args:
            busy: sequences that the coming step reads, and copies where it has to.
        """
        users: dict[int, list[FrameSequence]] = {}
        for state in self._open.values():
            if state.view is not None and state not in busy:
                users.setdefault(id(state.view.frame), []).append(state)
        for states in users.values():
            assert states[0].view is not None, "those without a view were left out"
            frame = states[0].view.frame
            longest = max(state.length for state in states)
            needed = self._pool.frame_bytes(len(states), longest)
            if self._pool.frame_bytes(frame.rows, frame.tokens) > _MAX_WASTE * needed:
                self._gather(states)

    def discard(self, state: FrameSequence) -> None:
        """See `Sequences.discard`."""
        state.pending = 0
        if state.next_view is not None:
            self._pool.drop(state.next_view.frame)
            state.next_view = None

    def commit(self, state: FrameSequence, n: int) -> None:
        """See `Sequences.commit`."""
        if n and state.next_view is not None:
            assert not state.imported, "a call brought all committed tokens into one frame"
            self._look_at(state, self._hold(state.next_view))
            state.length += n
        self.discard(state)

    def truncate(self, state: FrameSequence, length: int) -> None:
        """See `Sequences.truncate`."""
        self.discard(state)
        if state.imported:
            self._gather([state])
        state.length = length
        if length == 0:
            self._look_at(state, None)
        self.tidy()

    def fork(self, state: FrameSequence, length: int) -> SequenceId:
        """See `Sequences.fork`. Nothing is copied."""
        forked = self.open()
        target = self.find(forked)
        if state.imported:
            self._gather([state])
        if length and state.view is not None:
            target.view = self._hold(state.view)
            target.length = length
        return forked

    def read(self, state: FrameSequence, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """See `Sequences.read`."""
        if state.imported:
            self._gather([state])
        for i, like in enumerate(self.geometry):
            if state.view is None:
                yield np.empty((like.heads, 0, like.dim), like.dtype)
            else:
                frame, row, first = state.view
                yield frame.arrays[i][row, :, first + start : first + stop].copy()

    def append(self, state: FrameSequence, arrays: Sequence[NDArray[Any]], n: int) -> None:
        """See `Sequences.append`. Many blocks in a row are put into a frame once."""
        self.discard(state)
        if n:
            state.imported.append([array.copy() for array in arrays])
            state.length += n

    def check_integrity(self) -> None:
        """Raises AssertionError where frames live for nobody or views leave their frames."""
        states = list(self._open.values())
        views = [view for s in states for view in (s.view, s.next_view) if view is not None]
        self._pool.check_integrity(len(views))
        for state in states:
            assert state.length <= self._max_context, state
            assert (state.view is None) == (state.viewed == 0), state
            assert (state.next_view is None) == (state.pending == 0), state
            ends = (
                (state.view, state.viewed),
                (state.next_view, state.length + state.pending),
            )
            for view, tokens in ends:
                if view is not None:
                    assert 0 <= view.row < view.frame.rows, (state, view)
                    assert 0 <= view.start <= view.frame.tokens - tokens, (state, view)

    def _make(self) -> FrameSequence:
        return FrameSequence()

    def _free(self, state: FrameSequence) -> None:
        self.discard(state)
        state.imported = []
        self._look_at(state, None)
        self.tidy()

    def _gather(self, states: Sequence[FrameSequence]) -> Frame:
        """Copies the sequences into a new frame, padded with zeros in front."""
        longest = max(state.length for state in states)
        frame = self._pool.take(len(states), longest)
        for row, state in enumerate(states):
            start, viewed = longest - state.length, state.viewed
            for i, array in enumerate(frame.arrays):
                array[row, :, :start] = 0
                if state.view is not None:
                    old, old_row, first = state.view
                    part = old.arrays[i][old_row, :, first : first + viewed]
                    array[row, :, start : start + viewed] = part
                at = start + viewed
                for block in state.imported:
                    stop = at + block[i].shape[1]
                    array[row, :, at:stop] = block[i]
                    at = stop
            if state.length:
                self._look_at(state, self._hold(View(frame, row, start)))
                state.imported = []
        self._pool.drop(frame)
        return frame

    def _hold(self, view: View) -> View:
        self._pool.hold(view.frame)
        return view

    def _look_at(self, state: FrameSequence, view: View | None) -> None:
        """Replaces the view; the new one is held already."""
        if state.view is not None:
            self._pool.drop(state.view.frame)
        state.view = view


def _common_frame(states: Sequence[FrameSequence]) -> Frame | None:
    """Returns the frame of which these are all rows, each to its end, or None."""
    views = [state.view for state in states]
    if views[0] is None:
        return None
    frame = views[0].frame
    rows: set[int] = set()
    for state, view in zip(states, views, strict=True):
        if view is None or view.frame is not frame or state.imported:
            return None
        if view.start + state.length != frame.tokens:
            return None
        rows.add(view.row)
    return frame if len(rows) == len(states) == frame.rows else None


def _row(state: FrameSequence) -> int:
    assert state.view is not None, "a common frame is looked at by all"
    return state.view.row
