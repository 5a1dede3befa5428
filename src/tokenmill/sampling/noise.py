"""Gumbel noise for the draw: a function of (seed, token, position, choice) and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenmill.sampling.philox import philox4x32


def gumbel_noise(
    ids: NDArray[np.int64], *, seed: int, position: int, choice: int = 0
) -> NDArray[np.float64]:
    """Returns one Gumbel(0, 1) value for each token id.

    The value is -log(-log u) with u = (x + 1/2) / 2**32 and x the word `id mod 4` of
    Philox-4x32-10 under key `seed` at counter (id div 4, position, choice, 0). So a draw can be
    repeated, cut, batched and rewound without a stream to keep.

    Args:
        ids: int64 [n], the candidates, in any order.
        seed: taken modulo 2**64.
        position: index in the sequence of the token that is being drawn, prompt included.
        choice: which of several outputs.

    Returns:
        float64 [n].
    """
    blocks, place = _blocks(ids >> 2)
    words = philox4x32((blocks.astype(np.uint64), position, choice, 0), seed & 0xFFFFFFFFFFFFFFFF)
    uniform = (words[ids & 3, place].astype(np.float64) + 0.5) / 4294967296.0
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _blocks(wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the blocks to compute and where each wanted one stands among them."""
    low = int(wanted.min())
    span = int(wanted.max()) - low + 1
    if span <= len(wanted):  # dense, as with a whole vocabulary: sorting would cost more
        return np.arange(low, low + span), wanted - low
    blocks, place = np.unique(wanted, return_inverse=True)
    return blocks, place
