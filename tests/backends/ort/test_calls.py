from __future__ import annotations

from tokenmill.backends.ort.calls import PlannedRow, plan_calls


def rows(*work: tuple[int, int]) -> list[PlannedRow]:
    return [PlannedRow(i, past, n) for i, (past, n) in enumerate(work)]


def test_rows_of_one_token_share_the_first_call() -> None:
    assert plan_calls(rows((0, 1), (50, 8), (7, 1), (900, 1))) == [[0, 2, 3], [1]]


def test_rows_of_several_tokens_with_a_past_go_alone() -> None:
    assert plan_calls(rows((5, 8), (5, 8))) == [[0], [1]]


def test_first_chunks_of_like_length_go_together() -> None:
    assert plan_calls(rows((0, 100), (0, 96), (0, 104))) == [[2, 0, 1]]


def test_first_chunks_part_where_padding_costs_more_than_a_call() -> None:
    assert plan_calls(rows((0, 512), (0, 20), (0, 500), (0, 12))) == [[0, 2], [1, 3]]


def test_nothing_planned_is_no_call() -> None:
    assert plan_calls([]) == []
