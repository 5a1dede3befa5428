import pytest

from tokenmill.api import build_request
from tokenmill.core.errors import InvalidRequest
from tokenmill.package.model_package import GenerationDefaults

NOTHING = GenerationDefaults()


def first(tokens, logits):
    return logits


def second(tokens, logits):
    return logits


@pytest.mark.parametrize("kind", [list, tuple])
def test_callables_reach_the_request_beside_the_options_of_the_table(kind):
    options = {"logits_processors": kind([first, second]), "sampler": second, "max_tokens": 5}
    request = build_request("x", options, NOTHING)
    assert request.logits_processors == (first, second)
    assert (request.sampler, request.limits.max_tokens) == (second, 5)


@pytest.mark.parametrize("options", [{}, {"logits_processors": None, "sampler": None}])
def test_without_callables_there_are_none(options):
    request = build_request("x", options, NOTHING)
    assert (request.logits_processors, request.sampler) == ((), None)


def test_a_later_change_of_the_caller_s_list_does_not_reach_the_request():
    processors = [first]
    request = build_request("x", {"logits_processors": processors}, NOTHING)
    processors.append(second)
    assert request.logits_processors == (first,)


@pytest.mark.parametrize(
    "options", [{"logits_processors": first}, {"logits_processors": [3]}, {"sampler": 3}]
)
def test_what_cannot_be_called_is_refused(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        build_request("x", options, NOTHING)


def test_a_misspelt_option_is_still_refused():
    with pytest.raises(InvalidRequest, match="no option 'logit_processors'"):
        build_request("x", {"logit_processors": [first]}, NOTHING)
