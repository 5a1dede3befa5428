import functools
import pickle
import sys

import numpy as np
import pytest

from tokenmill.core.errors import BackendError, CallbackError, Closed
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.sampling.custom import draw
from tokenmill.sampling.sampler import sample

GREEDY = SamplingParams(temperature=0)
DRAWN = SamplingParams(temperature=1.0, top_k=40, seed=7)


def row(*values):
    return np.array(values, dtype=np.float32)


LOGITS = row(0.0, 3.0, 2.0, 1.0)


def forbid(*ids):
    def forbidden(tokens, logits):
        logits[list(ids)] = -np.inf
        return logits

    return forbidden


def picks(token):
    return lambda tokens, logits: token


def returns(value):
    return lambda tokens, logits: value


def failed(*, processors=(), sampler=None, logits=LOGITS):
    with pytest.raises(CallbackError) as caught:
        draw(logits, [5], processors=processors, sampler=sampler, params=GREEDY)
    return caught.value


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_without_callables_it_is_the_draw_of_the_sampler(params):
    logits = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    for length in range(1, 30):
        for choice in (0, 2):
            expected = sample(logits, params, position=length, choice=choice)
            assert draw(logits, [9] * length, params=params, choice=choice) == expected


@pytest.mark.parametrize("choice", [0, 2])
def test_the_draw_after_processors_is_that_of_the_row_they_returned(choice):
    logits = np.random.default_rng(2).standard_normal(300).astype(np.float32)
    masked = logits.copy()
    masked[:150] = -np.inf
    for length in range(1, 30):
        expected = sample(masked, DRAWN, position=length, choice=choice)
        found = draw(
            logits, [9] * length, processors=[forbid(*range(150))], params=DRAWN, choice=choice
        )
        assert found == expected


def test_processors_work_in_order_each_on_the_result_before():
    def double(tokens, logits):
        return logits * np.float32(2)

    def raise_zero_by_five(tokens, logits):
        logits[0] += 5
        return logits

    logits = row(2.0, 8.0)  # (2 + 5) * 2 = 14 < 16, and 2 * 2 + 5 = 9 < 16
    rows = []
    last = [lambda tokens, logits: (rows.append(logits.tolist()), logits)[1]]
    draw(logits, [5], processors=[raise_zero_by_five, double, *last], params=GREEDY)
    draw(logits, [5], processors=[double, raise_zero_by_five, *last], params=GREEDY)
    assert rows == [[14.0, 16.0], [9.0, 16.0]]


def test_all_callables_see_every_token_so_far():
    seen = []

    def processor(tokens, logits):
        seen.append(tokens)
        return logits

    def sampler(tokens, logits):
        seen.append(tokens)
        return 0

    tokens = [5, 6, 7]
    draw(LOGITS, tokens, processors=[processor], sampler=sampler, params=GREEDY)
    tokens.append(8)
    assert seen == [(5, 6, 7), (5, 6, 7)]


def test_the_model_s_row_and_what_others_kept_stay_as_they_are():
    kept = []

    def keep(tokens, logits):
        kept.append(logits)
        return logits

    logits = LOGITS.copy()
    logits.setflags(write=False)
    assert draw(logits, [5], processors=[keep, forbid(1), keep], params=GREEDY) == 2
    assert [list(k) for k in kept] == [[0, 3, 2, 1], [0, -np.inf, 2, 1]]
    assert list(logits) == [0, 3, 2, 1]


def test_a_processor_may_return_a_row_of_its_own_that_cannot_be_written():
    own = row(0.0, 0.0, 9.0, 8.0)
    own.setflags(write=False)
    assert draw(LOGITS, [5], processors=[returns(own), forbid(2)], params=GREEDY) == 3
    assert list(own) == [0, 0, 9, 8]


def test_the_sampler_picks_in_place_of_the_parameters_from_the_processed_row():
    rows = []

    def worst(tokens, logits):
        rows.append(logits.tolist())
        return logits.argmin()

    assert draw(LOGITS, [5], processors=[forbid(2)], sampler=worst, params=GREEDY) == 2
    assert rows == [[0.0, 3.0, -np.inf, 1.0]]


@pytest.mark.parametrize("token", [3, np.int64(3), np.uint8(3)])
def test_a_sampler_s_integer_becomes_an_int(token):
    found = draw(LOGITS, [5], sampler=picks(token), params=GREEDY)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("token", [-1, 4, 2**70])
def test_an_id_outside_the_vocabulary_is_refused(token):
    error = failed(sampler=picks(token))
    assert error.what.endswith(f"picks.<locals>.<lambda> returned {token}")
    assert error.why == "the vocabulary has ids 0 to 3"


@pytest.mark.parametrize(
    ("token", "kind"), [(True, "bool"), (1.0, "float"), (None, "NoneType"), ("1", "str")]
)
def test_what_is_no_token_id_is_refused(token, kind):
    assert failed(sampler=picks(token)).what.endswith(f"returned {kind}")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "NoneType"),
        ([0.0] * 4, "list"),
        (np.ma.masked_array(LOGITS), "MaskedArray"),
        (LOGITS.astype(np.float64), "float64 [4]"),
        (LOGITS.astype(">f4"), ">f4 [4]"),
        (LOGITS[:3], "float32 [3]"),
        (LOGITS[None], "float32 [1, 4]"),
        (np.float32(3), "float32"),
    ],
)
def test_what_is_no_row_of_the_vocabulary_is_refused(value, told):
    error = failed(processors=[returns(value)])
    assert error.what.endswith(f"returned {told}")
    assert "float32 [4] is needed" in error.why


def test_a_row_that_was_changed_but_not_returned_is_explained():
    assert failed(processors=[returns(None)]).fix.startswith("Return the row")


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((np.nan,) * 4, "nan"),
        ((0, np.nan, 0, 0), "nan"),
        ((-np.inf,) * 4, "-inf"),
        ((0, np.inf, 0, 0), "inf"),
    ],
)
def test_a_row_that_nothing_can_be_drawn_from_is_refused(values, best):
    for sampler in (None, picks(0)):
        error = failed(processors=[returns(row(*values))], sampler=sampler)
        assert error.what.endswith("left nothing to draw from")
        assert error.why == f"the best of 4 logits is {best}"


def test_the_first_of_two_processors_is_blamed_for_its_own_row():
    error = failed(processors=[forbid(0, 1, 2, 3), returns(LOGITS)])
    assert "forbid.<locals>.forbidden" in error.what


@pytest.mark.parametrize("callables", [{"processors": [returns(LOGITS)]}, {"sampler": picks(0)}])
def test_a_row_that_the_model_spoilt_is_not_laid_on_a_callable(callables):
    with pytest.raises(BackendError, match="position 1 are not finite"):
        draw(row(0.0, np.nan), [5], params=GREEDY, **callables)


def raises(error):
    def raising(tokens, logits):
        raise error

    return raising


RAISING = raises(ValueError("no such word"))


@pytest.mark.parametrize("callables", [{"processors": [RAISING]}, {"sampler": RAISING}])
def test_an_exception_is_told_with_its_place(callables):
    line = raises.__code__.co_firstlineno + 2
    error = failed(**callables)
    assert error.what == f"raises.<locals>.raising failed at test_custom.py:{line}"
    assert error.why == "ValueError: no such word"
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("raised", [SystemExit(2), Closed("it is shut"), MemoryError()])
def test_no_exception_of_a_callable_gets_through(raised):
    assert failed(sampler=raises(raised)).why.startswith(type(raised).__name__)


def test_an_interrupt_of_the_user_gets_through():
    with pytest.raises(KeyboardInterrupt):
        draw(LOGITS, [5], sampler=raises(KeyboardInterrupt()), params=GREEDY)


def test_a_long_message_is_cut_and_on_one_line():
    why = failed(sampler=raises(ValueError("many words\n" * 1000))).why
    assert "\n" not in why
    assert len(why) <= len("ValueError: ") + 500


def test_an_exception_that_cannot_be_told_is_an_error_of_the_callable_too():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    assert failed(sampler=raises(Silent())).why == "Silent: (the error has no text)"


class Rule:
    def __call__(self, tokens, logits):
        raise KeyError(5)

    def method(self, tokens, logits):
        raise KeyError(5)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        (Rule(), "Rule"),
        (Rule().method, "Rule.method"),
        (functools.partial(functools.partial(Rule.method), Rule()), "Rule.method"),
    ],
)
def test_every_kind_of_callable_has_a_name(called, name):
    assert failed(sampler=called).what.startswith(f"{name} failed at test_custom.py:")


NO_ARGUMENT = sys.getrecursionlimit
"""Written in C, and takes no argument, so that calling it fails."""


def test_a_callable_without_python_code_has_no_place():
    assert failed(sampler=NO_ARGUMENT).what == "getrecursionlimit failed"


def test_the_error_survives_pickling():
    error = failed(sampler=raises(ValueError("lambda")))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (CallbackError, str(error))
