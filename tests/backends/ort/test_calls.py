from __future__ import annotations

from tokenmill.backends.ort.calls import Company, PlannedRow, plan_calls


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


def test_rows_that_cannot_share_go_alone() -> None:
    company = Company(alone=True)
    assert plan_calls(rows((0, 1), (50, 8), (0, 8)), company) == [[0], [1], [2]]


def test_without_padding_only_equal_pasts_and_equal_first_chunks_meet() -> None:
    company = Company(unequal_pasts=False, unequal_firsts=False)
    work = rows((9, 1), (4, 1), (9, 1), (0, 6), (0, 5), (0, 6), (4, 6))
    assert plan_calls(work, company) == [[1], [0, 2], [4], [3, 5], [6]]


def test_ragged_rows_meet_whatever_their_pasts() -> None:
    company = Company(ragged=True, capacity=100)
    work = rows((9, 8), (0, 7), (4, 1), (50, 8))
    assert plan_calls(work, company) == [[2], [0, 3, 1]]


def test_padding_never_leaves_the_cache() -> None:
    company = Company(ragged=True, capacity=100)
    assert plan_calls(rows((10, 20), (80, 19), (81, 19)), company) == [[0, 1], [2]]
