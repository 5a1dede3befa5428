import copy
import pickle

from tokenmill.core import errors


def kinds():
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TokenmillError)
    ]


def test_every_error_maps_to_every_door():
    for kind in kinds():
        mapping = errors.mapping_of(kind("what"))
        assert 400 <= mapping.http_status < 600
        assert 1 <= mapping.exit_code <= 4


def test_c_codes_are_unique():
    codes = [mapping.c_code for mapping in errors.ERROR_TABLE.values()]
    assert len(set(codes)) == len(codes)


def test_what_a_caller_causes_never_looks_like_our_fault():
    for kind in kinds():
        if issubclass(kind, (errors.InvalidRequest, errors.InvalidOption)):
            assert errors.mapping_of(kind("what"))[:2] == (400, 2)


def test_the_message_says_what_why_and_what_to_do():
    error = errors.InvalidRequest("top_p is 2", why="it must be below 1", fix="Use 0.9")
    assert str(error) == "top_p is 2: it must be below 1. Use 0.9"


def test_errors_survive_pickling_and_copying():
    error = errors.OutOfMemory("no room", why="full", fix="wait")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), other.what, other.why, other.fix) == (
            errors.OutOfMemory, "no room", "full", "wait",
        )  # fmt: skip
