from __future__ import annotations

import numpy as np
import pytest

from tokenmill.backends.graph.masks import Case, allowed, find_window
from tokenmill.backends.graph.sites import Refused

FULL = Case(1, 3, 2)
LONG = Case(1, 2, 30)


def added(case: Case, window: int | None, hidden: float = -np.inf) -> np.ndarray:
    return np.where(allowed(case, window), 0.0, hidden)[None]


def test_a_new_token_sees_itself_and_those_before_it() -> None:
    assert allowed(FULL, None).astype(int).tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]


def test_a_window_counts_the_token_itself() -> None:
    assert allowed(FULL, 2).astype(int).tolist() == [
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("hidden", [-np.inf, -10000.0, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("window", [None, 1, 4, 31])
def test_the_window_is_found(window: int | None, hidden: float) -> None:
    masks = [(case, added(case, window, hidden)) for case in (FULL, LONG)]
    assert find_window(masks) == window


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (added(FULL, None), added(LONG, None, -9.0), "adds a bias"),
        (added(FULL, None) + 0.5, added(LONG, None), "adds a bias"),
        (added(FULL, 2), added(LONG, 3), "neither causal nor a window"),
        (np.zeros((1, 3, 5)), added(LONG, None), "neither causal nor a window"),
        (np.full((1, 3, 5), np.nan), added(LONG, None), "differs between heads"),
        (
            np.concatenate([added(FULL, 2), added(FULL, None)]),
            added(LONG, None),
            "differs between heads",
        ),
    ],
)
def test_other_masks_are_refused(first: np.ndarray, second: np.ndarray, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        find_window([(FULL, first), (LONG, second)])
