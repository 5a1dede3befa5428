"""For how many tokens caches are laid out; pure functions."""

from __future__ import annotations

_FIRST = 256
_SLACK = 8
"""Memory becomes smaller where a part in so many is free afterwards, so that it stays for long."""


def bucket(tokens: int, most: int) -> int:
    """Returns the least capacity that holds so many tokens: 256, twice that, ..., or `most`."""
    assert tokens <= most, "no sequence is longer than the context"
    capacity = _FIRST
    while capacity < tokens:
        capacity *= 2
    return min(capacity, most)


def next_capacity(capacity: int, tokens: int, most: int) -> int:
    """Returns the capacity for rows of at most so many tokens, where there is `capacity` now.

    Args:
        capacity: what memory is laid out for.
        tokens: of the longest row.
        most: the largest capacity.
    """
    if tokens > capacity:
        return bucket(tokens, most)
    return min(capacity, bucket(min(most, tokens + tokens // _SLACK), most))
