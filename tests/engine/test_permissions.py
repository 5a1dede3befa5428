"""What a package lets a request choose, and how its prompts may be cut."""

from dataclasses import replace

import pytest

from support.scripted import ScriptedBackend, reply, scripted_package
from tokenmill.core.errors import InvalidOption, InvalidRequest
from tokenmill.core.request import GenerateRequest, Limits
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel, _max_stretch
from tokenmill.engine.prepare import Preparer
from tokenmill.package.model_package import GenerationDefaults, Permissions, Range

PROMPT = [65] * 9


def prepare(tmp_path, overrides, *, max_tokens=None, **sampling):
    package = replace(
        scripted_package(tmp_path),
        permissions=Permissions(overrides=overrides),
        defaults=GenerationDefaults(temperature=0.7, top_k=40),
    )
    settings = {"temperature": 0.7, "top_k": 40, **sampling}
    request = GenerateRequest(
        PROMPT, sampling=SamplingParams(**settings), limits=Limits(max_tokens)
    )
    return Preparer(package, None, 64).prepare(request)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0: the package does not let a request set it"),
        ({"top_k": 0}, "top_k is 0"),
        ({"min_p": 0.1}, "min_p is 0.1"),
        ({"seed": 7}, "seed is 7"),
        ({"max_tokens": 5}, r"max_tokens is 5: .*generation.overrides has top_p"),
    ],
)
def test_a_field_that_is_not_listed_cannot_be_set(tmp_path, asked, message):
    with pytest.raises(InvalidRequest, match=message):
        prepare(tmp_path, {"top_p": Range(None, None)}, **asked)


def test_the_packages_own_defaults_always_pass(tmp_path):
    prepared = prepare(tmp_path, {"top_p": Range(None, None)}, top_p=0.5)
    assert (prepared.sampling.temperature, prepared.sampling.top_p) == (0.7, 0.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [(1.6, "temperature is 1.6: .*at least 0.5 and at most 1.5"), (0.4, "temperature is 0.4")],
)
def test_a_listed_field_keeps_to_its_range(tmp_path, value, message):
    with pytest.raises(InvalidRequest, match=message):
        prepare(tmp_path, {"temperature": Range(0.5, 1.5)}, temperature=value)


def test_the_ends_of_a_range_are_allowed(tmp_path):
    allowed = {"temperature": Range(0.5, 1.5), "max_tokens": Range(1, None)}
    assert prepare(tmp_path, allowed, temperature=1.5, max_tokens=3).max_tokens == 3
    assert prepare(tmp_path, allowed, temperature=0.5).sampling.temperature == 0.5


def test_a_package_without_such_a_list_lets_everything_be_set(tmp_path):
    assert prepare(tmp_path, None, temperature=0.0, seed=3).sampling.temperature == 0.0


def test_max_tokens_that_is_no_number_is_refused_as_ever(tmp_path):
    with pytest.raises(InvalidRequest, match="whole number"):
        prepare(tmp_path, {"max_tokens": Range(1, None)}, max_tokens="5")


def steps_of(tmp_path, chunk, prefill_tokens, prompts=1):
    package = replace(scripted_package(tmp_path), permissions=Permissions(prefill_chunk=chunk))
    backend = ScriptedBackend(reply(9, [65]))
    model = LoadedModel(package, None, backend, EngineConfig(prefill_tokens=prefill_tokens))
    streams = [
        model.submit(
            GenerateRequest(PROMPT, sampling=SamplingParams(temperature=0), limits=Limits(1))
        )
        for _ in range(prompts)
    ]
    for stream in streams:
        stream.result()
    model.close()
    return backend.steps


@pytest.mark.parametrize(
    ("chunk", "prefill_tokens", "steps"),
    [
        (None, 4, [[4], [3], [2]]),
        (3, 512, [[3], [3], [3]]),
        (512, 3, [[3], [3], [3]]),
        (1, 4, [[2], [2], [2], [3]]),
        (0, 4, [[9]]),
    ],
)
def test_prompts_are_cut_as_caller_and_package_allow(tmp_path, chunk, prefill_tokens, steps):
    assert steps_of(tmp_path, chunk, prefill_tokens) == steps


def test_prompts_that_must_not_be_cut_are_not_cut_together_either(tmp_path):
    steps = steps_of(tmp_path, 0, 2, prompts=3)
    assert sorted(length for step in steps for length in step) == [9, 9, 9]


@pytest.mark.parametrize(
    ("chunk", "invariant_from", "stretch"),
    [(None, 2, 3.0), (64, 2, 3.0), (0, 2, None), (None, None, None)],
)
def test_measured_times_cut_prompts_only_where_no_result_depends_on_it(
    tmp_path, chunk, invariant_from, stretch
):
    package = replace(scripted_package(tmp_path), permissions=Permissions(prefill_chunk=chunk))
    limits = ScriptedBackend(lambda _: 65).limits
    limits = replace(limits, numerics=replace(limits.numerics, chunk_invariant_from=invariant_from))
    assert _max_stretch(package, 3.0, limits) == stretch
    assert _max_stretch(package, 0, limits) is None


def test_a_step_cannot_be_bounded_by_less_than_itself():
    with pytest.raises(InvalidOption, match=r"prefill_stretch is 0\.5"):
        EngineConfig(prefill_stretch=0.5)
