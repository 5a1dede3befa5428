"""The figures of a loaded model."""

import pytest

from support.scripted import ScriptedBackend, reply, scripted_package
from tokenmill.core.errors import CallbackError
from tokenmill.core.request import GenerateRequest, Limits
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def model(tmp_path):
    backend = ScriptedBackend(reply(4, [65]), max_rows=4)
    model = LoadedModel(scripted_package(tmp_path), None, backend, EngineConfig())
    yield model
    model.close()


def ask(model, prompt, max_tokens, **fields):
    limits = Limits(max_tokens)
    return model.submit(GenerateRequest(prompt, sampling=GREEDY, limits=limits, **fields))


def test_figures_of_requests_that_ran_one_after_the_other_are_exact(model):
    for tokens in (3, 5):
        ask(model, [1, 2, 3, 4], tokens).result()
    found = model.metrics.snapshot()
    assert (found.admitted_requests, found.queued_requests) == (2, {})
    assert found.finished_requests == {"length": 2}
    assert (found.finished_prompt_tokens, found.finished_completion_tokens) == (8, 8)
    assert found.generated_tokens == 8
    assert (found.queue_seconds.total, found.first_token_seconds.total) == (2, 2)
    assert found.inter_token_seconds.total == 6
    assert (found.preemptions, found.replayed_tokens) == ({}, 0)


def test_every_step_is_counted_with_its_rows(model):
    ask(model, [1, 2, 3, 4], 3).result()
    ask(model, [1, 2, 3, 4], 1).result()  # the step before it has been counted by now
    found = model.metrics.snapshot()
    assert found.step_rows.total >= 3
    assert found.step_rows.maximum == 1
    assert (found.step_prefill_tokens.minimum, found.step_prefill_tokens.maximum) == (4, 4)
    assert found.batch_occupancy == 1 / 4
    assert found.outside_run_seconds.sum <= found.step_seconds.sum


def test_an_engine_at_rest_holds_nothing(model):
    ask(model, [1, 2, 3, 4], 3).result()
    found = model.metrics.snapshot()
    assert (found.running_requests, found.waiting_requests, found.parked_requests) == (0, {}, 0)
    assert (found.reserved_bytes, found.committed_bytes) == (0, 0)
    assert found.budget_bytes > 0


def test_what_is_the_case_is_seen_from_inside_a_step(model):
    seen = []

    def look(tokens, logits):
        seen.append(model.metrics.snapshot())
        return logits

    ask(model, [1, 2, 3, 4], 3, logits_processors=(look,)).result()
    assert [found.running_requests for found in seen] == [1, 1, 1]
    assert [found.reserved_bytes for found in seen] == [7, 7, 7]  # a token is a byte of state
    assert [found.generated_tokens for found in seen] == [0, 1, 2]
    assert [found.committed_bytes for found in seen] == [4, 5, 6]


def test_a_failed_request_is_counted_as_such(model):
    with pytest.raises(CallbackError):
        ask(model, [1, 2, 3, 4], 3, sampler=lambda tokens, logits: -1).result()
    found = model.metrics.snapshot()
    assert found.finished_requests == {"error": 1}
    assert (found.finished_prompt_tokens, found.finished_completion_tokens) == (4, 0)
