"""Which rows to move so that a batch lies side by side; a pure function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Exchange(NamedTuple):
    """The contents of two rows change places; `b` may be empty, `a` is not."""

    a: int
    b: int


class Arrangement(NamedTuple):
    """How to make a batch contiguous.

    Attributes:
        first: the first row of the batch afterwards.
        exchanges: to be done in order.
        moved_tokens: what they copy.
    """

    first: int
    exchanges: tuple[Exchange, ...]
    moved_tokens: int


def arrange(batch: Collection[int], tokens: Mapping[int, int], max_rows: int) -> Arrangement:
    """Returns the cheapest way to make the batch's rows contiguous.

    Args:
        batch: distinct rows, at least one.
        tokens: of every occupied row, those of the batch included: how many it would copy.
        max_rows: rows in all.
    """
    rows = sorted(batch)
    if rows[-1] - rows[0] + 1 == len(rows):
        return Arrangement(rows[0], (), 0)
    size, members = len(rows), set(rows)
    best: Arrangement | None = None
    for first in range(max_rows - size + 1):
        window = range(first, first + size)
        outside = [row for row in rows if row not in window]
        # Empty places go to the longest rows; occupants of the others take the rows left.
        places = sorted((row for row in window if row not in members), key=lambda r: r in tokens)
        outside.sort(key=lambda row: -tokens[row])
        cost = sum(tokens[row] for row in outside) + sum(tokens.get(row, 0) for row in places)
        if best is None or cost < best.moved_tokens:
            exchanges = tuple(Exchange(a, b) for a, b in zip(outside, places, strict=True))
            best = Arrangement(first, exchanges, cost)
    assert best is not None, "a batch is never larger than the number of rows"
    return best
