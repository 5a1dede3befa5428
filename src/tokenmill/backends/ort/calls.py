"""How the rows of a step are cut into calls of the runtime; a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

_FREE_PADDING = 32
"""Padded tokens that cost less than a call of their own."""


class PlannedRow(NamedTuple):
    """What the cut depends on.

    Attributes:
        row: its index among the step's rows.
        past: committed tokens of its sequence.
        num_tokens: its new tokens, at least 1.
    """

    row: int
    past: int
    num_tokens: int


class Company(NamedTuple):
    """Which rows can share a call.

    Attributes:
        alone: no rows at all.
        unequal_pasts: rows of one token each, whatever their pasts; else equal pasts only.
        unequal_firsts: first chunks of different lengths, padded; else of equal lengths only.
        ragged: rows of several tokens whatever their pasts, padded, up to `capacity`.
        capacity: most tokens of past, new tokens and padding in a ragged row.
    """

    alone: bool = False
    unequal_pasts: bool = True
    unequal_firsts: bool = True
    ragged: bool = False
    capacity: int = 0


EQUALS = Company(unequal_pasts=False, unequal_firsts=False)
"""Rows of one token with one past, and first chunks of one length: among equals the longest row is
like any other."""

PADDED = Company()
"""Rows of one token with any past, and first chunks of any length."""


def plan_calls(rows: Sequence[PlannedRow], company: Company = PADDED) -> list[list[int]]:
    """Returns the row indices of each call.

    Rows of one token go together; no row of several tokens joins them, since the two kinds are
    computed by different kernels and a row's bits must not depend on its company. Rows of several
    tokens go together, padded to the longest, while the padding costs less than it saves; those
    with a past go alone but where `company.ragged` says otherwise.
    """
    if company.alone:
        return [[row.row] for row in rows]
    single = [row for row in rows if row.num_tokens == 1]
    several = sorted((row for row in rows if row.num_tokens > 1), key=lambda row: -row.num_tokens)
    if company.unequal_pasts:
        calls = [single] if single else []
    else:
        calls = list(_equal(single, lambda row: row.past))
    if company.ragged:
        calls += _groups(several, company)
    else:
        first = [row for row in several if not row.past]
        if company.unequal_firsts:
            calls += _groups(first, company)
        else:
            calls += _equal(first, lambda row: row.num_tokens)
        calls += [[row] for row in rows if row.num_tokens > 1 and row.past]
    return [[row.row for row in call] for call in calls]


def _equal(
    rows: Sequence[PlannedRow], size: Callable[[PlannedRow], int]
) -> Iterator[list[PlannedRow]]:
    for _, members in groupby(sorted(rows, key=size), size):
        yield list(members)


def _groups(rows: Sequence[PlannedRow], company: Company) -> Iterator[list[PlannedRow]]:
    """Yields rows that share a call; `rows` come longest first."""
    group: list[PlannedRow] = []
    for row in rows:
        if group and not (_fits(row, group[0], company) and _pays([*group, row])):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _fits(row: PlannedRow, longest: PlannedRow, company: Company) -> bool:
    return not company.ragged or row.past + longest.num_tokens <= company.capacity


def _pays(group: Sequence[PlannedRow]) -> bool:
    wanted = sum(row.num_tokens for row in group)
    padding = max(row.num_tokens for row in group) * len(group) - wanted
    return padding <= max(_FREE_PADDING, wanted // 8)
