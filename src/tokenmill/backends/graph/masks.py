"""Which tokens a mask lets a query see: all before it, or those within a window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.backends.graph.sites import Refused

_HIDDEN = -9999.0
"""A mask that adds this or less hides a token: exporters write -10000 or the type's lowest."""


class Case(NamedTuple):
    """One set of inputs: rows, and their tokens that are new and past, the same in each row."""

    batch: int
    new: int
    past: int

    @property
    def total(self) -> int:
        """Tokens in a row."""
        return self.past + self.new


def allowed(case: Case, window: int | None) -> NDArray[np.bool_]:
    """Returns [new, total]: which tokens each new one sees.

    Args:
        window: how many tokens it looks back at, itself included; None for all.
    """
    queries = np.arange(case.past, case.total)[:, None]
    tokens = np.arange(case.total)[None]
    seen = tokens <= queries
    if window is not None:
        seen &= tokens > queries - window
    return seen


def find_window(added: Iterable[tuple[Case, NDArray[Any]]]) -> int | None:
    """Returns the window of a mask that is causal, None where it has none.

    Args:
        added: what the mask adds to scores of 0, [any, new, total], for several cases; a window
            shows only where one of them has more tokens.

    Raises:
        Refused: the mask does anything else.
    """
    window = None
    masks = []
    for case, bias in added:
        seen = _seen(bias)
        last = int(seen[-1].sum())
        if last < case.total:
            window = last if window is None else max(last, window)
        masks.append((case, seen))
    for case, seen in masks:
        _compare(case, seen, window)
    return window


def is_seen(bias: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns where what a mask adds does not hide a token."""
    seen: NDArray[np.bool_] = bias > _HIDDEN
    return seen


def check_mask(case: Case, added: NDArray[Any], window: int | None) -> None:
    """Compares a mask with the one that was found.

    Args:
        added: what the mask adds to scores of 0, [any, new, total].

    Raises:
        Refused: it is another one.
    """
    _compare(case, _seen(added), window)


def _seen(bias: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns [new, total]: which tokens each new one sees, in every head."""
    seen = is_seen(bias)
    if np.any((bias != 0) & seen):
        raise Refused("it adds a bias to its scores")
    # NaN is neither.
    if np.any(np.isnan(bias)) or np.any(seen != seen[:1]):
        raise Refused("its mask differs between heads")
    every: NDArray[np.bool_] = seen[0]
    return every


def _compare(case: Case, seen: NDArray[np.bool_], window: int | None) -> None:
    if not np.array_equal(seen, allowed(case, window)):
        raise Refused("its mask is neither causal nor a window")
