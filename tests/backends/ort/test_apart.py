"""Rows that depend on the longest one of a call share calls with their equals only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from support.decoding import random_tokens, step
from support.long_tables import THRESHOLD, choose_tables
from support.tiny_onnx import TinySpec
from support.tiny_package import package_of
from tokenmill.backends.base import MultiTokenRows
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.core.rows import Logits, Row

CONFIG = BackendConfig(threads=1, max_rows=4)
SPEC = TinySpec(layers=1)


@pytest.fixture
def backend(tmp_path: Path) -> OrtBackend:
    onnx.save(choose_tables("If", SPEC), tmp_path / "model.onnx")
    return OrtBackend(package_of(tmp_path / "model.onnx", SPEC), CONFIG)


def test_it_is_declared(backend: OrtBackend) -> None:
    limits = backend.limits
    assert limits.multi_token_rows is MultiTokenRows.SOLO
    assert limits.numerics.batch_invariant
    assert limits.numerics.chunk_invariant_from is None
    layout = "shared buffers, 4 rows of 256 tokens, those of equal length together"
    assert backend.report().layout == layout


def test_a_row_is_the_same_beside_one_that_takes_the_other_tables(backend: OrtBackend) -> None:
    short, long = random_tokens(8), random_tokens(THRESHOLD + 5, seed=1)

    def alone() -> list[np.ndarray]:
        sequence = backend.open()
        found = [step(backend, sequence, short, Logits.ALL), step(backend, sequence, [3])]
        backend.close(sequence)
        return found

    wanted = alone()
    first, other, second = (backend.open() for _ in range(3))
    rows = [Row(first, short, logits=Logits.ALL), Row(other, long), Row(second, short)]
    result = backend.run(rows)
    assert result.timings.calls == 2
    assert np.array_equal(result.rows[0].logits, wanted[0])
    for row in rows:
        backend.commit(row.sequence, len(row.tokens))
    result = backend.run([Row(sequence, [3]) for sequence in (first, other, second)])
    assert result.timings.calls == 2
    for output in (result.rows[0], result.rows[2]):
        assert np.array_equal(output.logits, wanted[1])
    backend.check_integrity()


@pytest.mark.parametrize("length", [THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, THRESHOLD + 2])
def test_no_padding_takes_a_row_over_the_threshold(
    backend: OrtBackend, tmp_path: Path, length: int
) -> None:
    tokens = random_tokens(length)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    past = np.zeros((1, SPEC.kv_heads, 0, SPEC.head_dim), np.float32)
    feeds = {name.name: past for name in session.get_inputs() if name.name.startswith("past")}
    feeds["input_ids"] = np.array([tokens])
    feeds["attention_mask"] = np.ones((1, length), np.int64)
    (wanted,) = session.run(["logits"], feeds)
    found = step(backend, backend.open(), tokens, Logits.ALL)
    assert np.abs(found - wanted[0]).max() < 1e-5
