from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.backends.ort.arrange import Exchange, arrange


def test_a_contiguous_batch_stays_where_it_is() -> None:
    assert arrange([4, 2, 3], {2: 9, 3: 9, 4: 9}, 8) == (2, (), 0)


def test_the_shortest_row_moves_into_the_gap() -> None:
    assert arrange([0, 2], {0: 100, 2: 10}, 4) == (0, (Exchange(2, 1),), 10)
    assert arrange([0, 2], {0: 10, 2: 100}, 4) == (1, (Exchange(0, 1),), 10)


def test_an_occupant_takes_the_place_of_the_row_that_comes() -> None:
    assert arrange([0, 2], {0: 100, 1: 5, 2: 10}, 3) == (0, (Exchange(2, 1),), 15)


def test_an_empty_place_is_better_than_an_occupied_one() -> None:
    tokens = {0: 50, 1: 40, 2: 60}
    assert arrange([0, 2], tokens, 4) == (2, (Exchange(0, 3),), 50)


def test_the_longest_row_takes_the_empty_place() -> None:
    # Both windows at the ends move two rows; only one place of each is empty.
    plan = arrange([0, 1, 4, 6], {0: 99, 1: 99, 2: 1, 4: 5, 6: 7}, 7)
    assert plan == (0, (Exchange(6, 3), Exchange(4, 2)), 13)


@given(st.data())
def test_the_batch_is_contiguous_afterwards_and_nobody_is_lost(data: st.DataObject) -> None:
    max_rows = data.draw(st.integers(1, 9))
    rows = st.sets(st.integers(0, max_rows - 1), min_size=1)
    occupied = data.draw(rows)
    batch = data.draw(st.sets(st.sampled_from(sorted(occupied)), min_size=1))
    tokens = {row: data.draw(st.integers(0, 9)) for row in occupied}
    plan = arrange(batch, tokens, max_rows)
    place: dict[int, int] = {row: row for row in occupied}
    for a, b in plan.exchanges:
        inverse = {at: owner for owner, at in place.items()}
        assert a in inverse
        place[inverse[a]] = b
        if b in inverse:
            place[inverse[b]] = a
    assert sorted(place[row] for row in batch) == list(range(plan.first, plan.first + len(batch)))
    assert len(set(place.values())) == len(occupied)
    moved = sum(tokens[row] for row, at in place.items() if row != at)
    assert plan.moved_tokens == moved
