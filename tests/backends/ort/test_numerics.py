"""What `limits.numerics` declares, bit for bit, over the forms that weights and graphs take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.decoding import feed, random_tokens, solo, step
from support.tiny_onnx import TinySpec
from tokenmill.backends.base import DecodeBackend
from tokenmill.core.rows import Logits, Row

OpenBackend = Callable[..., DecodeBackend]

SPECS = {
    "fp32": TinySpec(),
    "packed": TinySpec(packed=True),
    "4-bit": TinySpec(bits=4, head_bits=4),
    "8-bit": TinySpec(bits=8, head_bits=8),
    "4-bit corrected": TinySpec(bits=4, head_bits=8, packed=True, correction=True),
    "mask kept": TinySpec(mask_needed=True),
    "position ids": TinySpec(position_ids=True),
    "half logits": TinySpec(logits_dtype="float16"),
    "soft cap": TinySpec(soft_cap=True),
    "sliding window": TinySpec(window=20),
}
every_form = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())

PASTS = (1, 17, 0, 64, 130)


@every_form
def test_ragged_decode_equals_solo(open_tiny: OpenBackend, spec: TinySpec) -> None:
    backend = open_tiny(spec=spec, max_rows=6)
    texts = [random_tokens(past + 1, seed=past) for past in PASTS]
    alone = [solo(backend, text[:-1], text[-1:]) for text in texts]
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        if len(text) > 1:
            step(backend, sequence, text[:-1], Logits.NONE)
    for size in (2, 3, 5):
        rows = [
            Row(sequence, text[-1:])
            for sequence, text in list(zip(sequences, texts, strict=True))[:size]
        ]
        result = backend.run(rows)
        assert result.timings.calls == 1
        for output, expected in zip(result.rows, alone[:size], strict=True):
            assert np.array_equal(output.logits, expected)


@every_form
# 33 and 65 leave one query over in blocks of twice this decoder's head dimension.
@pytest.mark.parametrize("chunk", [2, 3, 7, 33, 64, 65])
def test_chunks_equal_the_whole(open_tiny: OpenBackend, spec: TinySpec, chunk: int) -> None:
    backend = open_tiny(spec=spec)
    tokens = random_tokens(200)
    whole, cut = backend.open(), backend.open()
    expected = step(backend, whole, tokens, Logits.ALL)
    assert np.array_equal(feed(backend, cut, tokens, chunk), expected)
    assert np.array_equal(step(backend, cut, [5]), step(backend, whole, [5]))


@every_form
def test_e21_ragged_first_chunks_equal_solo(open_tiny: OpenBackend, spec: TinySpec) -> None:
    backend = open_tiny(spec=spec)
    short, long = random_tokens(3, seed=1), random_tokens(7, seed=2)
    alone = [solo(backend, [], short), solo(backend, [], long)]
    a, b = backend.open(), backend.open()
    result = backend.run([Row(a, short, logits=Logits.ALL), Row(b, long, logits=Logits.ALL)])
    assert result.timings.calls == 1
    for output, expected in zip(result.rows, alone, strict=True):
        assert np.array_equal(output.logits, expected)
    backend.commit(a, 3)
    backend.commit(b, 7)
    after = [solo(backend, short, [4]), solo(backend, long, [4])]
    for output, expected in zip(backend.run([Row(a, [4]), Row(b, [4])]).rows, after, strict=True):
        assert np.array_equal(output.logits, expected)


def test_e21_greedy_ids_in_a_batch_equal_solo(open_tiny: OpenBackend) -> None:
    backend = open_tiny()
    prompts = [random_tokens(3, seed=1), random_tokens(7, seed=2)]

    def greedy(batch: list[list[int]]) -> list[list[int]]:
        sequences = [backend.open() for _ in batch]
        pending, ids = [list(prompt) for prompt in batch], [[] for _ in batch]
        for _ in range(12):
            rows = [Row(s, tokens) for s, tokens in zip(sequences, pending, strict=True)]
            outputs = backend.run(rows).rows
            for i, output in enumerate(outputs):
                token = int(np.argmax(output.logits[0]))
                backend.commit(sequences[i], len(pending[i]))
                pending[i] = [token]
                ids[i].append(token)
        for sequence in sequences:
            backend.close(sequence)
        return ids

    assert greedy(prompts) == [greedy([prompt])[0] for prompt in prompts]


@every_form
def test_a_mixed_step_equals_solo(open_tiny: OpenBackend, spec: TinySpec) -> None:
    backend = open_tiny(spec=spec, max_rows=8)
    work = [(0, 9), (20, 1), (12, 5), (0, 2), (40, 1), (0, 1), (31, 33)]
    texts = [random_tokens(past + new, seed=i) for i, (past, new) in enumerate(work)]
    alone = [solo(backend, text[:p], text[p:]) for text, (p, _) in zip(texts, work, strict=True)]
    sequences = [backend.open() for _ in work]
    for sequence, text, (past, _) in zip(sequences, texts, work, strict=True):
        if past:
            step(backend, sequence, text[:past], Logits.NONE)
    rows = [
        Row(sequence, text[past:], logits=Logits.ALL)
        for sequence, text, (past, _) in zip(sequences, texts, work, strict=True)
    ]
    result = backend.run(rows)
    assert result.timings.calls == 4
    for output, expected in zip(result.rows, alone, strict=True):
        assert np.array_equal(output.logits, expected)


@every_form
def test_which_logits_are_wanted_changes_no_bit(open_tiny: OpenBackend, spec: TinySpec) -> None:
    backend = open_tiny(spec=spec)
    tokens = random_tokens(45)
    sequence = backend.open()
    whole = solo(backend, [], tokens)
    for wanted in (Logits.LAST, [0], [3, 44], list(range(0, 45, 2))):
        output = backend.run([Row(sequence, tokens, logits=wanted)]).rows[0]
        offsets = [44] if wanted is Logits.LAST else wanted
        assert np.array_equal(output.logits, whole[offsets])


@every_form
def test_threads_change_no_bit(open_tiny: OpenBackend, spec: TinySpec) -> None:
    tokens = random_tokens(100)
    results = []
    for threads in (1, 2):
        backend = open_tiny(spec=spec, threads=threads)
        results.append((solo(backend, [], tokens), solo(backend, tokens, [1])))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


def test_a_chunk_that_fills_the_context_keeps_its_bits(open_tiny: OpenBackend) -> None:
    # 33 tokens end exactly at the context, so there is no room to make their number even.
    backend = open_tiny(max_context=65)
    tokens = random_tokens(65)
    roomy = open_tiny()
    expected = solo(roomy, [], tokens)
    sequence = backend.open()
    step(backend, sequence, tokens[:32], Logits.NONE)
    wanted = [32, 0, 31]
    logits = step(backend, sequence, tokens[32:], wanted)
    assert np.array_equal(logits, expected[[64, 32, 63]])
    assert np.array_equal(solo(backend, [], tokens), expected)


# Quantised activations magnify the last bit, so the classes are compared on fp32 graphs only.
@pytest.mark.parametrize("form", [name for name, spec in SPECS.items() if spec.bits is None])
def test_decoding_agrees_with_the_reference(open_tiny: OpenBackend, form: str) -> None:
    spec = SPECS[form]
    backend, reference = open_tiny(spec=spec), open_tiny("reference", spec)
    tokens = random_tokens(40)
    expected = solo(reference, [], tokens)
    sequence = backend.open()
    parts = [step(backend, sequence, tokens[:20], Logits.ALL)]
    parts += [step(backend, sequence, [token]) for token in tokens[20:]]
    tolerance = 2e-3 if spec.logits_dtype == "float16" else 1e-5
    assert np.abs(np.concatenate(parts) - expected).max() < tolerance


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_e23_a_sliding_window_does_not_depend_on_chunks(open_tiny: OpenBackend, chunk: int) -> None:
    spec, tokens = TinySpec(window=4), random_tokens(10)
    backend, reference = open_tiny(spec=spec), open_tiny("reference", spec)
    sequence = backend.open()
    for start in range(0, 10, chunk):
        logits = step(backend, sequence, tokens[start : start + chunk])
    assert np.abs(logits[0] - solo(reference, [], tokens)[-1]).max() < 1e-5
    unlimited = solo(open_tiny(), [], tokens)[-1]
    assert np.abs(logits[0] - unlimited).max() > 1e-3


def test_quantised_prefill_agrees_with_the_reference_bit_for_bit(open_tiny: OpenBackend) -> None:
    spec = SPECS["4-bit corrected"]
    tokens = random_tokens(41)
    backend, reference = open_tiny(spec=spec), open_tiny("reference", spec)
    assert np.array_equal(solo(backend, [], tokens), solo(reference, [], tokens))


@pytest.mark.parametrize("context", [5, 33])
@pytest.mark.parametrize("short", [2, 3, 4])
def test_a_row_that_fills_an_odd_context_does_not_disturb_shorter_ones(
    open_tiny: OpenBackend, context: int, short: int
) -> None:
    backend = open_tiny(max_context=context)
    texts = [random_tokens(n, seed=n) for n in (context, short)]
    alone = [solo(backend, [], text) for text in texts]
    rows = [Row(backend.open(), text, logits=Logits.ALL) for text in texts]
    for output, expected in zip(backend.run(rows).rows, alone, strict=True):
        assert np.array_equal(output.logits, expected)
