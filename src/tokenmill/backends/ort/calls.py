"""How the rows of a step are cut into calls of the runtime; a pure function."""

from __future__ import annotations

from collections.abc import Sequence
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


def plan_calls(rows: Sequence[PlannedRow]) -> list[list[int]]:
    """Returns the row indices of each call.

    Rows of one token go together, whatever their length; no row of several tokens joins them,
    since the two kinds are computed by different kernels and a row's bits must not depend on its
    company. Rows of several tokens go alone where they have a past, which the runtime demands;
    first chunks go together, padded to the longest, while the padding costs less than it saves.
    """
    single = [row.row for row in rows if row.num_tokens == 1]
    calls = [single] if single else []
    first = sorted(
        (row for row in rows if row.num_tokens > 1 and not row.past),
        key=lambda row: -row.num_tokens,
    )
    group: list[PlannedRow] = []
    for row in first:
        if group and not _pays([*group, row]):
            calls.append([member.row for member in group])
            group = []
        group.append(row)
    if group:
        calls.append([member.row for member in group])
    calls.extend([row.row] for row in rows if row.num_tokens > 1 and row.past)
    return calls


def _pays(group: Sequence[PlannedRow]) -> bool:
    wanted = sum(row.num_tokens for row in group)
    padding = max(row.num_tokens for row in group) * len(group) - wanted
    return padding <= max(_FREE_PADDING, wanted // 8)
