import pytest

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import GenerateRequest, new_request_id


def processor(tokens, logits):
    return logits


def sampler(tokens, logits):
    return 0


def test_ids_are_unique():
    assert len({new_request_id() for _ in range(100)}) == 100


def test_callables_are_kept_in_order():
    other = GenerateRequest("x", logits_processors=(processor, sampler), sampler=sampler)
    assert other.logits_processors == (processor, sampler)
    assert other.sampler is sampler


@pytest.mark.parametrize("value", [processor, [processor], (processor, 3), "ab", None])
def test_processors_that_are_no_tuple_of_callables_are_refused(value):
    with pytest.raises(InvalidRequest, match=r"logits_processors is .*: it must be a list of"):
        GenerateRequest("x", logits_processors=value)


def test_a_sampler_that_cannot_be_called_is_refused():
    with pytest.raises(InvalidRequest, match="sampler is 'greedy': it must be callable"):
        GenerateRequest("x", sampler="greedy")
