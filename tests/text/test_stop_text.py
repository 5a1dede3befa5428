import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import InvalidRequest
from tokenmill.text.stop_text import StopMatcher, StopOutcome


def feed(stops, deltas, *, include_stop=False):
    """The texts shown, one a delta and one for the end, and the stop text found."""
    matcher = StopMatcher(stops, include_stop)
    shown = [matcher.push(delta).text for delta in deltas]
    return [*shown, matcher.flush()], matcher.stopped


def test_e1_text_before_the_stop_is_shown_and_nothing_of_it():
    shown, stopped = feed(["O P Q"], [" L", " M", " N", " O", " P", " Q"])
    assert shown == [" L", " M", " N", " ", "", "", ""]
    assert stopped == "O P Q"
    assert not any("O" in text for text in shown)


def test_e2_a_beginning_that_is_no_stop_is_released_once():
    shown, stopped = feed(["\n", "Alice:"], [" Alice", "!", " Bye"])
    assert shown == [" ", "Alice!", " Bye", ""]
    assert stopped is None


def test_what_is_held_at_the_end_is_released():
    assert feed(["Alice:"], ["x Ali"]) == (["x ", "Ali"], None)


def test_after_a_stop_nothing_is_shown():
    matcher = StopMatcher(["b"])
    assert matcher.push("abc") == StopOutcome("a", "b")
    assert matcher.push("d") == StopOutcome("", "b")
    assert matcher.flush() == ""


def test_include_stop_shows_the_stop_and_nothing_after_it():
    assert feed(["b"], ["ab", "c"], include_stop=True) == (["ab", "", ""], "b")


def test_the_match_that_is_complete_first_wins_wherever_the_text_is_cut():
    for deltas in (["abc"], ["a", "b", "c"], ["ab", "c"]):
        shown, stopped = feed(["abc", "b"], deltas)
        assert ("".join(shown), stopped) == ("a", "b")


def test_of_two_matches_that_end_together_the_longer_wins():
    assert feed(["bc", "abc"], ["xab", "c"]) == (["x", "", ""], "abc")


def test_only_the_longest_possible_beginning_is_held():
    matcher = StopMatcher(["aab"])
    assert [matcher.push("a").text for _ in range(4)] == ["", "", "a", "a"]
    assert matcher.push("b") == StopOutcome("", "aab")


def test_without_stops_everything_passes():
    assert feed([], ["a", ""]) == (["a", "", ""], None)


def test_an_empty_stop_is_refused_by_its_index():
    with pytest.raises(InvalidRequest, match=r"stop\[1\] is empty"):
        StopMatcher(["a", ""])


def test_would_stop_changes_nothing():
    matcher = StopMatcher(["ab"])
    matcher.push("a")
    assert matcher.would_stop("b")
    assert not matcher.would_stop("c")
    assert matcher.push("c") == StopOutcome("ac", None)


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    deltas=st.lists(st.text("abc", max_size=5), max_size=8),
    include_stop=st.booleans(),
)
def test_the_result_equals_a_search_of_the_whole_text(stops, deltas, include_stop):
    text = "".join(deltas)
    ends = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    shown, stopped = feed(stops, deltas, include_stop=include_stop)
    if not ends:
        assert ("".join(shown), stopped) == (text, None)
    else:
        end, start, stop = min(ends)
        assert ("".join(shown), stopped) == (text[: end if include_stop else start], stop)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    deltas=st.lists(st.text("ab", min_size=1, max_size=3), max_size=8),
)
def test_no_more_is_held_back_than_a_stop_could_begin_with(stops, deltas):
    matcher = StopMatcher(stops)
    seen = shown = ""
    for delta in deltas:
        outcome = matcher.push(delta)
        seen, shown = seen + delta, shown + outcome.text
        if outcome.stopped:
            return
        held = seen[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(
            stop.startswith(seen[start:]) for stop in stops for start in range(len(shown))
        )
