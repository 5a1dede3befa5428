"""What goes into one model step, and what comes out: the vocabulary of the backend contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import TokenmillError
from tokenmill.core.ids import AdapterId, SequenceId


class Logits(Enum):
    """Which of a row's positions need logits. A row may also give a sequence of offsets."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Argmax(NamedTuple):
    """Ask for the best token only: `RowOutput.ids` [k], lowest id on a tie."""


class TopK(NamedTuple):
    """Ask for the best `k` tokens only: `RowOutput.ids` and `RowOutput.logits`, both [n, k]."""

    k: int


class Splice(NamedTuple):
    """Embeddings that stand in for tokens; never cut by a chunk boundary.

    Attributes:
        offset: of the first replaced token, counted from the row's first token.
        array: float32 [k, hidden].
    """

    offset: int
    array: NDArray[np.float32]


def never() -> bool:
    """The default of `Row.cancelled`."""
    return False


class Row(NamedTuple):
    """What one sequence does in this step.

    Attributes:
        sequence: whose state is read and extended.
        tokens: n >= 1 new token ids (placeholders where embeddings stand).
        embeds: splices, in ascending order, not overlapping.
        positions: int64 [n] or [3, n]; None means contiguous from the sequence's length.
        adapter: the adapter to apply, if any.
        logits: which of the n positions need logits: NONE, LAST, ALL or offsets into `tokens`.
        reduce: a backend that has the feature "reduce" may answer with this instead of logits.
        hidden: also return the final hidden states of the positions that `logits` names.
        cancelled: asked before work starts on the row; True gives the row back as `Cancelled`.
    """

    sequence: SequenceId
    tokens: Sequence[int]
    embeds: Sequence[Splice] = ()
    positions: NDArray[np.int64] | None = None
    adapter: AdapterId | None = None
    logits: Logits | Sequence[int] = Logits.LAST
    reduce: Argmax | TopK | None = None
    hidden: bool = False
    cancelled: Callable[[], bool] = never


class RowOutput(NamedTuple):
    """One row's result. Arrays are views, valid until the backend's next `run`.

    Attributes:
        logits: float32 [k, vocab_size], k the number of positions asked for (may be 0);
            None where a reduction was given instead.
        ids: int64, the reduction's ids, where one was asked for and given.
        hidden: float32 [k, hidden], where asked for.
        error: why this row failed; the other rows are not affected.
    """

    logits: NDArray[np.float32] | None = None
    ids: NDArray[np.int64] | None = None
    hidden: NDArray[np.float32] | None = None
    error: TokenmillError | None = None


class StepTimings(NamedTuple):
    """Where a step's time went, in seconds.

    Attributes:
        total: the whole `run`.
        compute: inside the runtime's own calls.
        calls: how many such calls the rows were cut into.
    """

    total: float = 0.0
    compute: float = 0.0
    calls: int = 0


class StepResult(NamedTuple):
    """The results of `DecodeBackend.run`, in the order of its rows."""

    rows: Sequence[RowOutput]
    timings: StepTimings = StepTimings()


Array = NDArray[Any]
