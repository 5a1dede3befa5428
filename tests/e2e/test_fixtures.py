"""Every fixture in every form that an exporter wrote it in: the ids of PyTorch.

What the fixtures are, and what made them, is in tests/fixtures/README.md. Prompts are token ids,
so that nothing here depends on a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from support.decoding import step
from tokenmill import LLM
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.core.ids import SequenceId
from tokenmill.core.rows import Logits, Row
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions

FIXTURES = Path(__file__).parent.parent / "fixtures"
CONTEXT = 128
CLOSE = 1e-5
"""Most that logits may differ between two ways to compute the same, where kernels differ."""


class Fixture(NamedTuple):
    """A line of the table.

    Attributes:
        weights: which recording holds what they give.
        variant: what to ask for, where the directory offers several.
        tolerance: of the logits after a prompt, against the recording.
        agreement: the share of tokens that must be the recorded ones, given those before.
            Below 1 where the graph rounds activations: to 8 bits in 4-bit products (the builder's
            default), or to float16.
    """

    shape: str
    form: str
    weights: str = "fp32"
    variant: str | None = None
    tolerance: float = 2e-5
    agreement: float = 1.0

    @property
    def directory(self) -> Path:
        return FIXTURES / self.shape / self.form

    def __str__(self) -> str:
        return "-".join(filter(None, (self.shape, self.form, self.variant)))


TABLE = (
    Fixture("llama", "optimum"),
    Fixture("llama", "optimum-merged"),
    Fixture("llama", "genai-fp32"),
    Fixture("llama", "genai-int4", "int4", tolerance=0.3, agreement=0.95),
    Fixture("llama", "mobius-default"),
    Fixture("llama", "mobius-cpu"),
    Fixture("llama", "mobius-standard"),
    Fixture("llama", "mobius-static"),
    Fixture("qwen2", "optimum"),
    Fixture("qwen2", "genai-fp32"),
    Fixture("qwen2", "genai-int4", "int4", tolerance=0.3, agreement=0.95),
    Fixture("qwen2", "genai-int4-exact", "int4"),
    Fixture("qwen2", "mobius-ort-genai"),
    Fixture("qwen2", "mobius-standard"),
    Fixture("qwen2", "mobius-static"),
    Fixture("qwen2", "mobius-f16", "fp16", tolerance=0.02),
    Fixture("qwen2", "bare"),
    Fixture("qwen2", "transformers-js"),
    Fixture("qwen2", "transformers-js", "fp32", "fp32"),
    Fixture("qwen2", "transformers-js", "fp16", "fp16", tolerance=0.02, agreement=0.98),
    Fixture("qwen2", "transformers-js", "q4", "q4"),
    Fixture("qwen2", "model-package"),
    Fixture("qwen2", "model-package", "int4", "cpu-int4", tolerance=0.3, agreement=0.95),
    Fixture("qwen3", "optimum"),
    Fixture("qwen3", "genai-fp32"),
    Fixture("qwen3", "mobius-standard"),
    Fixture("qwen3", "mobius-static"),
    Fixture("gemma2", "optimum"),
    Fixture("gemma2", "genai-fp32"),
    Fixture("gemma3", "optimum"),
    Fixture("gemma3", "mobius-standard"),
    Fixture("phi", "optimum"),
    Fixture("phi", "mobius-standard"),
    Fixture("gpt2", "optimum"),
    Fixture("gpt2", "mobius-standard"),
    Fixture("gpt-neox", "optimum"),
    Fixture("gpt-neox", "mobius-standard"),
)

each = pytest.mark.parametrize("fixture", TABLE, ids=str)
Open = Callable[[Fixture], DecodeBackend]


class Case(NamedTuple):
    """A prompt, what PyTorch generates after it, and the logits of the first of those."""

    prompt: list[int]
    generated: list[int]
    logits: np.ndarray


@cache
def cases_of(shape: str, weights: str) -> tuple[Case, ...]:
    document = json.loads((FIXTURES / shape / f"expected-{weights}.json").read_text())
    return tuple(
        Case(case["prompt"], case["generated"], np.array(case["last_prompt_logits"], np.float32))
        for case in document["cases"]
    )


@pytest.fixture(scope="module")
def graph_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def open_fixture(graph_cache: Path) -> Iterator[Open]:
    opened: list[DecodeBackend] = []

    def make(fixture: Fixture) -> DecodeBackend:
        package = load_package(fixture.directory, LoadOptions(variant=fixture.variant))
        config = BackendConfig(threads=1, max_rows=4, max_context=CONTEXT, cache_dir=graph_cache)
        opened.append(open_backend(package, config))
        return opened[-1]

    yield make
    for backend in opened:
        backend.check_integrity()
        backend.shutdown()


def generate(
    fixture: Fixture, graph_cache: Path, *, together: bool, prefill_tokens: int = 512
) -> list[list[int]]:
    """The ids after each of the fixture's prompts."""
    cases = cases_of(fixture.shape, fixture.weights)
    options = {"max_tokens": 32, "temperature": 0, "ignore_eos": True}
    with LLM(
        fixture.directory,
        variant=fixture.variant,
        threads=1,
        max_rows=4 if together else 1,
        max_context=CONTEXT,
        prefill_tokens=prefill_tokens,
        cache_dir=graph_cache,
    ) as llm:
        prompts = [case.prompt for case in cases]
        if together:
            return [list(result.token_ids) for result in llm.generate(prompts, **options)]
        return [list(llm.generate(prompt, **options).token_ids) for prompt in prompts]


def greedy(backend: DecodeBackend, sequence: SequenceId, token: int, n: int) -> list[int]:
    """Continues a sequence with `token` and the n - 1 greedy ones after it."""
    tokens = [token]
    while len(tokens) < n:
        tokens.append(int(step(backend, sequence, tokens[-1:]).argmax()))
    return tokens


def test_the_table_has_a_line_for_every_directory() -> None:
    made = {path for path in FIXTURES.glob("*/*") if path.is_dir()}
    assert {fixture.directory for fixture in TABLE} == {
        path for path in made if path.parent.name != "making"
    }


@each
def test_greedy_ids_are_those_recorded_alone_together_and_in_pieces(
    fixture: Fixture, graph_cache: Path
) -> None:
    alone = generate(fixture, graph_cache, together=False)
    if fixture.agreement == 1:
        assert alone == [case.generated for case in cases_of(fixture.shape, fixture.weights)]
    assert generate(fixture, graph_cache, together=True) == alone
    assert generate(fixture, graph_cache, together=True, prefill_tokens=4) == alone


@each
def test_logits_and_the_tokens_after_each_are_those_recorded(
    fixture: Fixture, open_fixture: Open
) -> None:
    backend = open_fixture(fixture)
    right = total = 0
    for case in cases_of(fixture.shape, fixture.weights):
        sequence = backend.open()
        logits = step(backend, sequence, [*case.prompt, *case.generated[:-1]], Logits.ALL)
        backend.close(sequence)
        after = logits[len(case.prompt) - 1 :]
        assert np.abs(after[0] - case.logits).max() <= fixture.tolerance
        right += int((after.argmax(axis=1) == case.generated).sum())
        total += len(case.generated)
    assert right / total >= fixture.agreement


@each
def test_rows_of_different_lengths_together_give_the_logits_of_each_alone(
    fixture: Fixture, open_fixture: Open
) -> None:
    backend = open_fixture(fixture)
    prompts = [case.prompt for case in cases_of(fixture.shape, fixture.weights)]
    alone = []
    for prompt in prompts:
        sequence = backend.open()
        alone.append((step(backend, sequence, prompt), step(backend, sequence, [5])))
        backend.close(sequence)
    sequences = [backend.open() for _ in prompts]
    for turn, parts in enumerate((prompts, [[5]] * len(prompts))):
        rows = [Row(sequence, part) for sequence, part in zip(sequences, parts, strict=True)]
        together = [output.logits.copy() for output in backend.run(rows).rows]
        for sequence, part in zip(sequences, parts, strict=True):
            backend.commit(sequence, len(part))
        for logits, expected in zip(together, alone, strict=True):
            if backend.limits.numerics.batch_invariant:
                assert np.array_equal(logits, expected[turn])
            else:
                assert np.abs(logits - expected[turn]).max() <= CLOSE


@each
def test_after_a_rewind_the_same_tokens_give_the_same_ids(
    fixture: Fixture, open_fixture: Open
) -> None:
    backend = open_fixture(fixture)
    prompt = cases_of(fixture.shape, fixture.weights)[3].prompt
    sequence = backend.open()
    first = step(backend, sequence, prompt)
    ids = greedy(backend, sequence, int(first.argmax()), 8)
    backend.truncate(sequence, 17)
    assert backend.length(sequence) == 17
    again = step(backend, sequence, prompt[17:])
    assert np.abs(again - first).max() <= CLOSE
    assert greedy(backend, sequence, int(again.argmax()), 8) == ids


@each
def test_a_fork_and_its_origin_go_on_alone(fixture: Fixture, open_fixture: Open) -> None:
    backend = open_fixture(fixture)
    prompt = cases_of(fixture.shape, fixture.weights)[3].prompt

    def fresh(tokens: Sequence[int], length: int) -> list[int]:
        sequence = backend.open()
        step(backend, sequence, prompt[:length], Logits.NONE)
        ids = greedy(backend, sequence, int(step(backend, sequence, tokens).argmax()), 6)
        backend.close(sequence)
        return ids

    expected = fresh([7, 8], 40), fresh([9, 10, 11], 23)
    origin = backend.open()
    step(backend, origin, prompt, Logits.NONE)
    fork = backend.fork(origin, 23)
    first = [
        int(step(backend, fork, [9, 10, 11]).argmax()),
        int(step(backend, origin, [7, 8]).argmax()),
    ]
    forked, kept = [first[0]], [first[1]]
    for _ in range(5):
        rows = backend.run([Row(fork, forked[-1:]), Row(origin, kept[-1:])]).rows
        forked.append(int(rows[0].logits.argmax()))
        kept.append(int(rows[1].logits.argmax()))
        backend.commit(fork, 1)
        backend.commit(origin, 1)
    assert (kept, forked) == expected
