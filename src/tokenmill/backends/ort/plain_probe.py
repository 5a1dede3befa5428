"""What a plain graph can do beyond one row at a time, found out by a few calls at load.

Whether padding is right depends on how the graph reads mask and positions, which has as many
spellings as there are exporters; so results are compared instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.agreement import Tolerance, attempt, distance, probe_tokens, silent
from tokenmill.backends.ort.call_row import CallRow
from tokenmill.backends.ort.calls import Company
from tokenmill.backends.ort.frame_sequences import FrameSequence, FrameSequences
from tokenmill.backends.ort.frames import FramePool
from tokenmill.backends.ort.plain_calls import PlainCalls
from tokenmill.backends.ort.plain_stepper import PlainStepper
from tokenmill.backends.ort.step_ports import StepPorts

_LONG, _SHORT = 9, 4
_Logits = list[NDArray[np.float32]]


class PlainAbilities(NamedTuple):
    """What a graph can do.

    Attributes:
        cache_first: see `PlainStepper.cache_first`.
        several_with_past: see `PlainCalls.several_with_past`.
        company: which rows can share a call.
    """

    cache_first: bool
    several_with_past: bool
    company: Company


def probe_plain(
    stepper: PlainStepper, ports: StepPorts, pool: FramePool, max_rows: int, max_context: int
) -> PlainAbilities:
    """Finds out what the stepper's graph can do, and sets `stepper.cache_first`.

    Raises:
        BackendError: it does not even compute a text from nothing.
    """
    probe = _Probe(stepper, pool, max_context)
    dtype = min((ports.logits.dtype, *(like.dtype for like in pool.geometry)), key=_precision)
    stepper.run_options = silent()
    try:
        stepper.cache_first = ports.use_cache is not None and probe.cache_first_is_right(dtype)
        return probe.abilities(dtype, has_mask=ports.mask is not None, alone=max_rows == 1)
    finally:
        stepper.run_options = None
        probe.close()


def _precision(dtype: np.dtype) -> tuple[bool, int]:
    return dtype.kind == "f", dtype.itemsize


class _Probe:
    """Two texts, computed in several ways."""

    def __init__(self, stepper: PlainStepper, pool: FramePool, max_context: int) -> None:
        self._stepper = stepper
        self._sequences = FrameSequences(pool, max_rows=32, max_context=max_context)
        self._calls = PlainCalls(stepper, self._sequences, pool)
        self._long = probe_tokens(min(_LONG, max_context - 1), stepper.vocab_size, 1)
        self._short = probe_tokens(min(_SHORT, len(self._long) - 1), stepper.vocab_size, 2)
        (self._next,) = probe_tokens(1, stepper.vocab_size, 3)

    def close(self) -> None:
        self._sequences.close_all()

    def cache_first_is_right(self, dtype: np.dtype) -> bool:
        """Whether the branch that reads a past computes the first chunk too."""
        expected = self._whole(self._long)[1]

        def compare() -> float:
            return distance(self._whole(self._long)[1], expected)

        self._stepper.cache_first = True
        return Tolerance(expected, dtype).allows(attempt(compare))

    def abilities(self, dtype: np.dtype, *, has_mask: bool, alone: bool) -> PlainAbilities:
        long, logits = self._whole(self._long)
        short, short_logits = self._whole(self._short)
        tolerance = Tolerance(logits, dtype)
        cut, last = len(self._short), len(self._long) - 1

        def continued(start: int) -> float:
            state = self._first_tokens(long, start)
            (found,) = self._run([state], [self._long[start:]])
            return distance(found, logits[start:])

        one = attempt(lambda: continued(last))
        several = tolerance.allows(attempt(lambda: continued(cut)), one)
        if alone:
            return PlainAbilities(self._stepper.cache_first, several, Company(alone=True))
        after = [self._after([state])[0] for state in (long, short)]
        equal = self._first_tokens(long, cut)
        noise = attempt(lambda: distance(self._after([equal, short])[1], after[1]))
        if not tolerance.allows(noise, one):
            return PlainAbilities(self._stepper.cache_first, several, Company(alone=True))

        def padded_pasts() -> float:
            return max(map(distance, self._after([long, short]), after))

        def padded_firsts() -> float:
            states = self._open(2)
            found = self._run(states, [self._long, self._short])
            same = max(map(distance, found, (logits, short_logits)))
            found = [self._after([state])[0] for state in states]
            return max(same, *map(distance, found, after))

        pasts = has_mask and tolerance.allows(attempt(padded_pasts), noise)
        firsts = has_mask and tolerance.allows(attempt(padded_firsts), max(noise, one))
        company = Company(unequal_pasts=pasts, unequal_firsts=firsts)
        return PlainAbilities(self._stepper.cache_first, several, company)

    def _open(self, n: int) -> list[FrameSequence]:
        return [self._sequences.find(self._sequences.open()) for _ in range(n)]

    def _whole(self, text: Sequence[int]) -> tuple[FrameSequence, NDArray[np.float32]]:
        states = self._open(1)
        return states[0], self._run(states, [text])[0]

    def _first_tokens(self, state: FrameSequence, length: int) -> FrameSequence:
        return self._sequences.find(self._sequences.fork(state, length))

    def _after(self, states: Sequence[FrameSequence]) -> _Logits:
        """Returns the logits of the next token after each text, in one call."""
        copies = [self._first_tokens(state, state.length) for state in states]
        return self._run(copies, [[self._next]] * len(copies))

    def _run(self, states: Sequence[FrameSequence], texts: Sequence[Sequence[int]]) -> _Logits:
        rows = [
            CallRow(text, state.length, range(len(text)))
            for state, text in zip(states, texts, strict=True)
        ]
        self._stepper.start([rows])
        result = self._calls.compute(states, rows)
        for state in states:
            self._sequences.commit(state, state.pending)
        return [logits.copy() for logits in result.logits]
