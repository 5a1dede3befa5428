"""What a call computes, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class CallRow(NamedTuple):
    """What one row computes.

    Attributes:
        tokens: the new tokens.
        past: committed tokens before them.
        offsets: into `tokens`, of the positions whose logits are wanted.
    """

    tokens: Sequence[int]
    past: int
    offsets: Sequence[int]


class CallResult(NamedTuple):
    """What one call of the runtime gave, or a few that stand for one.

    Attributes:
        logits: of each row, float32 [k, vocab].
        seconds: inside the runtime.
    """

    logits: list[NDArray[np.float32]]
    seconds: float


def wanted_logits(
    logits: NDArray[np.floating], chosen: Sequence[int], rows: Sequence[CallRow], *, cut: bool
) -> list[NDArray[np.float32]]:
    """Returns each row's logits out of what a call wrote.

    Args:
        logits: [..., vocab]: of the chosen positions where the graph cuts rows, else of all.
        chosen: the wanted positions of all rows, in the order of their offsets.
        rows: of the call.
        cut: whether the graph cuts rows.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.dtype != np.float32:
        flat = flat.astype(np.float32)
    if not cut and list(chosen) != list(range(len(flat))):
        flat = flat[list(chosen)]
    parts: list[NDArray[np.float32]] = []
    start = 0
    for row in rows:
        parts.append(flat[start : start + len(row.offsets)])
        start += len(row.offsets)
    return parts
