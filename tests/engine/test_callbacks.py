"""A caller's own processors and samplers, in the engine."""

import threading

import numpy as np
import pytest

from support.scripted import ScriptedBackend, reply, scripted_package
from tokenmill.core.errors import CallbackError
from tokenmill.core.request import GenerateRequest, Limits, Stop
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel
from tokenmill.scheduler.scheduler import Preemption

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def load(tmp_path):
    models = []

    def make(script, *, preemption=Preemption.AUTO, **limits):
        backend = ScriptedBackend(script, **limits)
        config = EngineConfig(preemption=preemption)
        model = LoadedModel(scripted_package(tmp_path), None, backend, config)
        models.append(model)
        return model, backend

    yield make
    for model in models:
        model.close()


def ask(model, prompt, max_tokens=4, **fields):
    fields.setdefault("sampling", GREEDY)
    return model.submit(GenerateRequest(prompt, limits=Limits(max_tokens), **fields))


def add_one_to_the_last(tokens, logits):
    return tokens[-1] + 1


def test_a_sampler_writes_the_reply_and_stop_ids_hold_for_it(load):
    model, _ = load(reply(2, [65]))
    result = ask(model, [7, 8], 5, sampler=add_one_to_the_last).result()
    assert (result.token_ids, result.finish_reason) == ((9, 10, 11, 12, 13), "length")
    stop = Stop(token_ids=frozenset({11}))
    assert ask(model, [7, 8], 5, sampler=add_one_to_the_last, stop=stop).result().token_ids == (
        9, 10, 11,
    )  # fmt: skip


def test_a_processor_changes_what_is_drawn_for_its_request_only(load):
    def forbid_65(tokens, logits):
        logits[65] = -np.inf
        return logits

    model, _ = load(reply(2, [65]))
    streams = [
        ask(model, [7, 8], logits_processors=(forbid_65,)),
        ask(model, [7, 8]),
        ask(model, [7, 8], logits_processors=(forbid_65,), sampling=SamplingParams(seed=5)),
    ]
    first, second, third = (stream.result().token_ids for stream in streams)
    assert (first, second) == ((0, 0, 0, 0), (65, 65, 65, 65))
    assert 65 not in third


def test_callables_see_the_prompt_and_every_token_since(load):
    seen = []

    def look(tokens, logits):
        seen.append(tokens)
        return logits

    model, _ = load(reply(2, [65, 66, 67]))
    ask(model, [7, 8], 3, logits_processors=(look,)).result()
    assert seen == [(7, 8), (7, 8, 65), (7, 8, 65, 66)]


def fail_at(length):
    def failing(tokens, logits):
        if len(tokens) == length:
            raise LookupError("no rule for this")
        return logits

    return failing


def test_a_callable_that_fails_ends_its_own_request_with_what_there_was(load):
    model, backend = load(reply(2, [65]))
    others = [ask(model, [7, 8], 9) for _ in range(2)]
    broken = ask(model, [7, 8], 9, logits_processors=(fail_at(5),))
    others.append(ask(model, [7, 8], 9))
    ids = []
    with pytest.raises(CallbackError, match="LookupError: no rule for this"):
        ids.extend(token for event in broken for token in event.token_ids)
    assert ids == [65, 65, 65]
    assert [stream.result().token_ids for stream in others] == [(65,) * 9] * 3
    assert backend.committed == {}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sampler": lambda tokens, logits: 300}, "the vocabulary has ids 0 to 299"),
        ({"logits_processors": (lambda tokens, logits: None,)}, r"float32 \[300\] is needed"),
    ],
)
def test_what_cannot_be_used_is_raised_by_the_result(load, fields, told):
    model, backend = load(reply(2, [65]))
    with pytest.raises(CallbackError, match=told):
        ask(model, [7, 8], **fields).result()
    assert ask(model, [7, 8], 1).result().token_ids == (65,)
    assert backend.committed == {}


def test_the_exit_of_a_callable_leaves_the_engine_running(load):
    def leave(tokens, logits):
        raise SystemExit(3)

    model, _ = load(reply(2, [65]))
    with pytest.raises(CallbackError, match="SystemExit: 3"):
        ask(model, [7, 8], sampler=leave).result()
    assert ask(model, [7, 8], 1).result().token_ids == (65,)


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.REPLAY])
def test_a_preempted_request_asks_its_callables_once_for_each_token(load, preemption):
    model, _ = load(lambda tokens: tokens[-1] + 1, max_rows=2, preemption=preemption)
    seen, urgent, both_are_here = [], [], threading.Event()

    def wait(tokens, logits):
        both_are_here.wait()
        return logits

    def look(tokens, logits):
        seen.append(len(tokens))
        if len(tokens) == 4:
            urgent.append(ask(model, [100], 5, priority=9))
        return logits

    oldest = ask(model, [50, 51], 30, logits_processors=(wait,))
    low = ask(model, [10, 11], 9, logits_processors=(look,))
    both_are_here.set()
    assert low.result().token_ids == tuple(range(12, 21))
    assert oldest.result().token_ids == tuple(range(52, 82))
    assert urgent[0].result().token_ids == (101, 102, 103, 104, 105)
    assert seen == list(range(2, 11))
    assert model.metrics.snapshot().preemptions == {preemption.value: 1}
