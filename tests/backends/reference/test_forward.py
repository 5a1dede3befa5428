from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.decoding import feed, random_tokens, step
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.reference.forward import teacher_forced_logits
from tokenmill.core.rows import Logits

OpenBackend = Callable[..., DecodeBackend]


@pytest.mark.parametrize("n", [1, 2, 33, 34])
def test_one_forward_gives_every_positions_logits(tmp_path: Path, n: int) -> None:
    package = make_package(tmp_path, TinySpec(logits_dtype="float16"))
    tokens = random_tokens(n)
    config = BackendConfig(threads=1)
    logits = teacher_forced_logits(package, tokens, config)
    assert (logits.shape, logits.dtype) == ((n, 96), np.float32)
    longer = teacher_forced_logits(package, [*tokens, 5, 6, 7], config)
    assert np.array_equal(longer[:n], logits)


@pytest.mark.parametrize("chunk", [1, 2, 31])
def test_any_cut_gives_the_same_bits(open_tiny: OpenBackend, chunk: int) -> None:
    backend = open_tiny("reference", TinySpec(bits=4, head_bits=8))
    tokens = random_tokens(66)
    whole, cut = backend.open(), backend.open()
    expected = step(backend, whole, tokens, Logits.ALL)
    if chunk == 1:
        parts = np.concatenate([step(backend, cut, [token]) for token in tokens])
    else:
        parts = feed(backend, cut, tokens, chunk)
    assert np.array_equal(parts, expected)


def test_a_page_block_holds_the_tokens(open_tiny: OpenBackend) -> None:
    backend = open_tiny("reference")
    sequence = backend.open()
    step(backend, sequence, [4, 5, 6, 7])
    block = backend.export_pages(sequence, 1, 3)
    (layer,) = block.layers
    assert (layer.kind, layer.layout, layer.array.tolist()) == ("tokens", "T", [5, 6])
    assert backend.limits.bytes([4, 2]) == 48
