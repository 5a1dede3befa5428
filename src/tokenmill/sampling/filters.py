"""Filters: which tokens may be drawn. Pure functions over one row.

A filter takes the candidates (ids ascending, their logits beside them) and returns fewer. Equal
logits are told apart by the id: the lower one is the better one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Candidates(NamedTuple):
    """Tokens that may still be drawn.

    Attributes:
        ids: int64 [n], ascending.
        logits: float64 [n].
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Returns those where `mask` [n] is true."""
        return Candidates(self.ids[mask], self.logits[mask])


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keeps the `k` best tokens exactly; 0 keeps all (Fan et al. 2018)."""
    size = len(candidates.ids)
    if k <= 0 or k >= size:
        return candidates
    threshold = np.partition(candidates.logits, size - k)[size - k]
    mask = candidates.logits > threshold
    ties = np.flatnonzero(candidates.logits == threshold)
    mask[ties[: k - int(mask.sum())]] = True
    return candidates.keep(mask)


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the smallest set of best tokens with probability `p` or more (Holtzman et al. 2020)."""
    if p >= 1.0:
        return candidates
    weights = np.exp(candidates.logits - candidates.logits.max())
    goal = p * weights.sum()
    best = _best_first(weights, goal)
    reached = np.cumsum(weights[best])
    count = int(np.searchsorted(reached, goal)) + 1
    mask = np.zeros(len(weights), dtype=np.bool_)
    mask[best[:count]] = True
    return candidates.keep(mask)


def min_p(candidates: Candidates, share: float) -> Candidates:
    """Keeps tokens with at least `share` of the best one's probability (Nguyen et al. 2024)."""
    if share <= 0.0:
        return candidates
    return candidates.keep(candidates.logits >= candidates.logits.max() + math.log(share))


def _best_first(weights: NDArray[np.float64], goal: float) -> NDArray[np.int64]:
    """Returns indices by falling weight, as many as it takes to reach `goal`, or more.

    Most often a few tokens hold nearly all of the mass, so the whole vocabulary is sorted only
    where the best 1,024 do not reach the goal.
    """
    few = 1024
    if len(weights) > 4 * few:
        threshold = np.partition(weights, len(weights) - few)[len(weights) - few]
        head = np.flatnonzero(weights >= threshold)
        if weights[head].sum() >= goal and len(head) <= 2 * few:
            return head[np.argsort(-weights[head], kind="stable")]
    return np.argsort(-weights, kind="stable")
