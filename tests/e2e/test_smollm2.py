"""The engine on a real model: answers, and bits that do not depend on how work is cut."""

import numpy as np
import pytest

from tokenmill import LLM
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.reference.forward import teacher_forced_logits
from tokenmill.backends.select import open_backend
from tokenmill.core.rows import Logits, Row
from tokenmill.package.load import load_package
from tokenmill.telemetry.memory import resident_bytes

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a miller who",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "In the year 1969, two astronauts",
    "A recipe for bread: take flour, water, salt and",
    "The opposite of hot is cold, and the opposite of up is",
    "Dear Sir or Madam, I am writing to you because",
    "1, 2, 3, 4, 5, 6, 7,",
]
LONG = "The mill stands by the river, and its wheel turns day and night. " * 12


def test_a_chat_names_paris(smollm2):
    with LLM(smollm2) as llm:
        question = [{"role": "user", "content": "Tell me the capital of France."}]
        result = llm.chat(question, max_tokens=32, temperature=0)
        assert "Paris" in result.text
        assert result.finish_reason == "stop"
        streamed = "".join(e.text for e in llm.stream_chat(question, max_tokens=32, temperature=0))
        assert streamed == result.text


@pytest.mark.long
def test_chunks_and_batches_give_the_ids_of_the_solo_runs(smollm2):
    prompts = [prompt + LONG[: 40 * i] for i, prompt in enumerate(PROMPTS)]
    wanted = None
    for chunk in (512, 2, 7, 64):
        with LLM(smollm2, prefill_tokens=chunk, max_rows=1) as llm:
            got = [llm.generate(p, max_tokens=64, temperature=0).token_ids for p in prompts]
        wanted = wanted or got
        assert got == wanted, f"chunks of {chunk}"
    with LLM(smollm2, max_rows=3) as llm:
        batch = llm.generate(prompts, max_tokens=64, temperature=0)
    assert [result.token_ids for result in batch] == wanted


def test_logits_are_the_same_bits_within_a_class(smollm2):
    package = load_package(smollm2)
    backend = open_backend(package, BackendConfig(max_rows=4, max_context=512))
    with LLM(smollm2) as llm:
        ids = [llm.tokenizer.encode(PROMPTS[i] + LONG[: 100 + 90 * i]) for i in range(3)]

    def prefill(tokens, chunk):
        sequence = backend.open()
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            logits = backend.run([Row(sequence, part)]).rows[0].logits.copy()
            backend.commit(sequence, len(part))
        return sequence, logits

    even = [tokens[: len(tokens) // 14 * 14] for tokens in ids]
    whole = [prefill(tokens, 512) for tokens in even]
    for tokens, (_, expected) in zip(even, whole, strict=True):
        for chunk in (2, 7, 64):
            if chunk == 64 and len(tokens) % 64 == 1:
                continue
            sequence, logits = prefill(tokens, chunk)
            assert np.array_equal(logits, expected), f"chunks of {chunk}"
            backend.close(sequence)
    solo = [backend.run([Row(s, [42])]).rows[0].logits.copy() for s, _ in whole]
    batch = backend.run([Row(s, [42]) for s, _ in whole])
    for alone, together in zip(solo, batch.rows, strict=True):
        assert np.array_equal(alone, together.logits)
    backend.shutdown()


def test_fp32_agrees_with_the_reference_position_by_position(smollm2_fp32):
    package = load_package(smollm2_fp32)
    backend = open_backend(package, BackendConfig(max_rows=1, max_context=256))
    with LLM(smollm2_fp32, max_rows=1) as llm:
        prompt = llm.tokenizer.encode(PROMPTS[1])
        ids = [*prompt, *llm.generate(prompt, max_tokens=48, temperature=0).token_ids]
    expected = teacher_forced_logits(package, ids)
    sequence = backend.open()
    backend.run([Row(sequence, ids[: len(prompt)], logits=Logits.ALL)])
    backend.commit(sequence, len(prompt))
    for position in range(len(prompt), len(ids)):
        got = backend.run([Row(sequence, [ids[position]])]).rows[0].logits[0]
        backend.commit(sequence, 1)
        assert np.abs(got - expected[position]).max() < 1e-3
        assert got.argmax() == expected[position].argmax()
    backend.shutdown()


def test_a_short_sequence_in_a_long_slot_commits_little_and_gives_it_back(smollm2):
    backend = open_backend(load_package(smollm2), BackendConfig(max_rows=2, max_context=8192))
    tokens = [500 + i for i in range(100)]

    def use_once():
        sequence = backend.open()
        backend.run([Row(sequence, tokens)])
        backend.commit(sequence, 100)
        return sequence

    backend.close(use_once())  # the runtime's own arenas grow on the first run
    before = resident_bytes()
    sequence = use_once()
    used = resident_bytes() - before
    backend.close(sequence)
    kept = resident_bytes() - before
    assert used <= 10 * 2**20
    assert kept <= 2**20
    backend.shutdown()
