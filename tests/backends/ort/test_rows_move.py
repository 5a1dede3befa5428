"""Rows that are moved so that a batch lies side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.decoding import random_tokens, solo, step
from tokenmill.backends.base import DecodeBackend
from tokenmill.core.rows import Logits, Row

OpenBackend = Callable[..., DecodeBackend]


def test_a_batch_with_a_gap_is_one_call_and_keeps_its_bits(open_tiny: OpenBackend) -> None:
    backend = open_tiny(max_rows=5)
    texts = [random_tokens(n, seed=n) for n in (30, 11, 25, 40)]
    alone = [solo(backend, text, [3]) for text in texts]
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(backend, sequence, text, Logits.NONE)
    for members in ((0, 2), (1, 3), (0, 3), (3, 0, 1), (2,), (0, 1, 2, 3)):
        result = backend.run([Row(sequences[i], [3]) for i in members])
        assert result.timings.calls == 1
        for i, output in zip(members, result.rows, strict=True):
            assert np.array_equal(output.logits, alone[i])
        backend.check_integrity()


def test_rows_move_when_every_row_is_taken(open_tiny: OpenBackend) -> None:
    backend = open_tiny(max_rows=4)
    texts = [random_tokens(n, seed=n) for n in (30, 11, 25, 40)]
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(backend, sequence, text, Logits.NONE)
    outputs = backend.run([Row(sequences[i], [3], logits=Logits.ALL) for i in (0, 3)]).rows
    kept = [output.logits.copy() for output in outputs]
    blocks = [backend.export_pages(s, 0, len(t)) for s, t in zip(sequences, texts, strict=True)]
    fresh = open_tiny(max_rows=4)
    assert np.array_equal(kept[0], solo(fresh, texts[0], [3]))
    assert np.array_equal(kept[1], solo(fresh, texts[3], [3]))
    for text, block in zip(texts, blocks, strict=True):
        sequence = fresh.open()
        step(fresh, sequence, text, Logits.NONE)
        expected = fresh.export_pages(sequence, 0, len(text))
        for mine, other in zip(block.layers, expected.layers, strict=True):
            assert np.array_equal(mine.array, other.array)
        fresh.close(sequence)


def test_tokens_of_this_step_survive_a_move_in_the_same_step(open_tiny: OpenBackend) -> None:
    # The decoding rows move first; then a first chunk takes place beside them.
    backend = open_tiny(max_rows=4)
    texts = [random_tokens(n, seed=n) for n in (30, 11, 25)]
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(backend, sequence, text, Logits.NONE)
    new = backend.open()
    backend.truncate(sequences[1], 0)
    rows = [
        Row(sequences[0], [1]),
        Row(sequences[2], [2]),
        Row(sequences[1], [5, 6, 7]),
        Row(new, [8, 9]),
    ]
    backend.run(rows)
    for row in rows:
        backend.commit(row.sequence, len(row.tokens))
    pasts = [[*texts[0], 1], [*texts[2], 2], [5, 6, 7], [8, 9]]
    outputs = [step(backend, row.sequence, [4, 4]) for row in rows]
    fresh = open_tiny()
    expected = [solo(fresh, pasts[2], [4, 4])[-1:], solo(fresh, pasts[3], [4, 4])[-1:]]
    for i, (text, token) in enumerate(((texts[0], 1), (texts[2], 2))):
        sequence = fresh.open()
        step(fresh, sequence, text, Logits.NONE)
        step(fresh, sequence, [token])
        expected.insert(i, step(fresh, sequence, [4, 4]))
        fresh.close(sequence)
    assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_first_chunks_go_alone_rather_than_move_others(open_tiny: OpenBackend) -> None:
    backend = open_tiny(max_rows=3)
    a, b, c = backend.open(), backend.open(), backend.open()
    step(backend, b, random_tokens(20), Logits.NONE)
    result = backend.run([Row(a, [1, 2]), Row(c, [3, 4])])
    assert result.timings.calls == 2
    assert np.array_equal(result.rows[0].logits, solo(open_tiny(), [], [1, 2])[-1:])
    assert np.array_equal(result.rows[1].logits, solo(open_tiny(), [], [3, 4])[-1:])
