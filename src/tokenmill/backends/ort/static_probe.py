"""Whether a static graph computes the same in chunks and in company, found out at load.

Where the causal mask of rows with a past begins was settled late, so that runtimes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.ort.agreement import Tolerance, attempt, distance, probe_tokens, silent
from tokenmill.backends.ort.call_row import CallRow
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.static_stepper import StaticStepper
from tokenmill.backends.ort.step_ports import StepPorts

_LONG, _SHORT = 9, 4


class StaticAbilities(NamedTuple):
    """What a graph can do.

    Attributes:
        several_with_past: takes several tokens at once on top of a past.
        company: takes several rows at once, of any length and past.
        logits: of a short text, to compare graphs by.
    """

    several_with_past: bool
    company: bool
    logits: NDArray[np.float32]


def probe_static(stepper: StaticStepper, ports: StepPorts, slots: Slots) -> StaticAbilities:
    """Finds out what the stepper's graph can do. The slots are empty before and afterwards.

    Raises:
        BackendError: it does not even compute a text from nothing.
    """
    long = probe_tokens(min(_LONG, slots.max_context - 1), stepper.vocab_size, 1)
    short = probe_tokens(min(_SHORT, len(long) - 1), stepper.vocab_size, 2)
    cut = len(short)

    def run(*rows: tuple[Sequence[int], int]) -> list[NDArray[np.float32]]:
        called = [CallRow(tokens, past, range(len(tokens))) for tokens, past in rows]
        stepper.start([called])
        return [logits.copy() for logits in stepper.call(0, called).logits]

    stepper.run_options = silent()
    try:
        (whole,), (alone,) = run((long, 0)), run((short, 0))
        dtype = min((like.dtype for like in slots.geometry), key=lambda dtype: dtype.itemsize)
        tolerance = Tolerance(whole, min(dtype, ports.logits.dtype, key=lambda d: d.itemsize))
        run((long, 0))
        one = attempt(lambda: distance(run((long[-1:], len(long) - 1))[0], whole[-1:]))

        def continued() -> float:
            run((long[:cut], 0))
            return distance(run((long[cut:], cut))[0], whole[cut:])

        several = tolerance.allows(attempt(continued), one)
        company = False
        if slots.max_rows > 1 and several:

            def together() -> float:
                first = run((long[:cut], 0), (short[:1], 0))
                second = run((long[cut:-1], cut), (short[1:], 1))
                third = run((long[-1:], len(long) - 1), (short[-1:], cut - 1))
                found = [
                    np.concatenate([first[0], second[0], third[0]]),
                    np.concatenate([first[1], second[1], third[1]]),
                ]
                expected = [whole, np.concatenate([alone, alone[-1:]])]
                return max(map(distance, found, expected))

            company = tolerance.allows(attempt(together), one)
        return StaticAbilities(several, company, whole)
    finally:
        stepper.run_options = None
        slots.release()
