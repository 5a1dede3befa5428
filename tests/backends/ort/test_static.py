"""Static caches: bits, capacities, memory, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.decoding import feed, random_tokens, solo, step
from support.memory import resident
from support.tiny_static import StaticSpec, make_static_package
from tokenmill.backends.base import DecodeBackend, MultiTokenRows
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort import static_session
from tokenmill.backends.ort.static_backend import StaticBackend
from tokenmill.core.errors import ContextLengthExceeded, UnsupportedModel
from tokenmill.core.rows import Logits, Row
from tokenmill.package.model_package import ModelPackage, Role

OpenBackend = Callable[..., DecodeBackend]

CONFIG = BackendConfig(threads=1, max_rows=4)
FREE = StaticSpec(capacity=None, context=1024)
SPECS = {
    "folded": FREE,
    "by head": replace(FREE, folded=False),
    "4-bit": replace(FREE, bits=4, head_bits=4),
    "8-bit": replace(FREE, bits=8, head_bits=8),
    "wide": replace(FREE, hidden=128, heads=8, kv_heads=4, head_dim=64),
    "int32 ids": replace(FREE, ids_dtype="int32"),
}
every_form = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


@every_form
def test_ragged_rows_of_several_tokens_are_one_call_with_the_bits_of_each_alone(
    open_tiny: OpenBackend, spec: StaticSpec
) -> None:
    backend = open_tiny(spec=spec)
    assert backend.limits.multi_token_rows is MultiTokenRows.RAGGED
    work = [(0, 9), (20, 5), (130, 12), (12, 2)]
    texts = [random_tokens(past + new, seed=i) for i, (past, new) in enumerate(work)]
    alone = [solo(backend, t[:past], t[past:]) for t, (past, _) in zip(texts, work, strict=True)]
    sequences = [backend.open() for _ in work]
    for sequence, text, (past, _) in zip(sequences, texts, work, strict=True):
        if past:
            step(backend, sequence, text[:past], Logits.NONE)
    rows = [
        Row(sequence, text[past:], logits=Logits.ALL)
        for sequence, text, (past, _) in zip(sequences, texts, work, strict=True)
    ]
    result = backend.run(rows)
    assert result.timings.calls == 1
    for output, expected in zip(result.rows, alone, strict=True):
        assert np.array_equal(output.logits, expected)


@every_form
def test_decoding_in_a_batch_keeps_the_bits(open_tiny: OpenBackend, spec: StaticSpec) -> None:
    backend = open_tiny(spec=spec)
    texts = [random_tokens(n, seed=n) for n in (30, 1, 250)]
    alone = [solo(backend, text, [3]) for text in texts]
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        step(backend, sequence, text, Logits.NONE)
    for members in ((0, 2), (2, 1, 0), (1,)):
        result = backend.run([Row(sequences[i], [3]) for i in members])
        assert result.timings.calls == 1
        for i, output in zip(members, result.rows, strict=True):
            assert np.array_equal(output.logits, alone[i])


@every_form
@pytest.mark.parametrize("chunk", [2, 3, 33, 64])
def test_chunks_equal_the_whole(open_tiny: OpenBackend, spec: StaticSpec, chunk: int) -> None:
    backend = open_tiny(spec=spec)
    tokens = random_tokens(300)
    whole, cut = backend.open(), backend.open()
    expected = step(backend, whole, tokens, Logits.ALL)
    assert np.array_equal(feed(backend, cut, tokens, chunk), expected)
    assert np.array_equal(step(backend, cut, [5]), step(backend, whole, [5]))


@every_form
def test_threads_change_no_bit(open_tiny: OpenBackend, spec: StaticSpec) -> None:
    tokens = random_tokens(100)
    results = []
    for threads in (1, 2):
        backend = open_tiny(spec=spec, threads=threads)
        results.append((solo(backend, [], tokens), solo(backend, tokens, [1])))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


@every_form
def test_it_agrees_with_the_reference(open_tiny: OpenBackend, spec: StaticSpec) -> None:
    backend, reference = open_tiny(spec=spec), open_tiny("reference", spec)
    tokens = random_tokens(60)
    expected = solo(reference, [], tokens)
    assert np.abs(solo(backend, [], tokens) - expected).max() < 1e-5
    if spec.bits is None:
        sequence = backend.open()
        parts = [step(backend, sequence, [token]) for token in tokens]
        assert np.abs(np.concatenate(parts) - expected).max() < 1e-5


def test_memory_follows_the_longest_row(open_tiny: OpenBackend) -> None:
    backend = open_tiny(spec=FREE, max_rows=2)
    roomy = open_tiny(spec=replace(FREE, capacity=1024, constant_capacity=True))
    a, b = backend.open(), backend.open()
    short, long = random_tokens(100), random_tokens(600, seed=1)
    capacities = []
    for sequence, tokens in ((a, short), (b, long[:250]), (b, long[250:300]), (b, long[300:])):
        step(backend, sequence, tokens, Logits.NONE)
        capacities.append(backend._slots.capacity)
    assert capacities == [256, 256, 512, 1024]
    assert np.array_equal(step(backend, a, [5, 6]), solo(roomy, short, [5, 6])[-1:])
    assert np.array_equal(step(backend, b, [5, 6]), solo(roomy, long, [5, 6])[-1:])
    backend.close(b)
    assert np.array_equal(step(backend, a, [7]), solo(roomy, [*short, 5, 6], [7]))
    assert backend._slots.capacity == 256


def test_imported_pages_beyond_the_capacity_make_it_grow(open_tiny: OpenBackend) -> None:
    source, target = open_tiny(spec=FREE), open_tiny(spec=FREE)
    tokens = random_tokens(400)
    sequence, other = source.open(), target.open()
    step(source, sequence, tokens, Logits.NONE)
    for start in range(0, 400, 16):
        target.import_pages(other, source.export_pages(sequence, start, start + 16))
    assert target.length(other) == 400
    assert np.array_equal(step(target, other, [1]), step(source, sequence, [1]))
    forked = target.fork(other, 300)
    assert np.array_equal(step(target, forked, [1]), solo(source, tokens[:300], [1]))


def test_padding_never_leaves_the_cache(open_tiny: OpenBackend) -> None:
    backend = open_tiny(spec=StaticSpec(capacity=128))
    a, b = backend.open(), backend.open()
    texts = random_tokens(126), random_tokens(20, seed=1)
    for sequence, text in zip((a, b), texts, strict=True):
        step(backend, sequence, text, Logits.NONE)
    alone = [solo(backend, texts[0], [1, 2]), solo(backend, texts[1], [3, 4, 5])]
    result = backend.run([Row(a, [1, 2], logits=Logits.ALL), Row(b, [3, 4, 5], logits=Logits.ALL)])
    assert result.timings.calls == 2
    for output, expected in zip(result.rows, alone, strict=True):
        assert np.array_equal(output.logits, expected)


def test_a_fixed_capacity_limits_the_context(open_tiny: OpenBackend) -> None:
    for name in ("static", "reference"):
        backend = open_tiny(name, StaticSpec(capacity=128))
        assert backend.limits.max_context == 128
        sequence = backend.open()
        step(backend, sequence, random_tokens(128))
        error = backend.run([Row(sequence, [1])]).rows[0].error
        assert isinstance(error, ContextLengthExceeded)


def test_a_large_fixed_capacity_is_set_free(tmp_path: Path) -> None:
    spec = StaticSpec(capacity=600, context=1024)
    config = replace(CONFIG, cache_dir=tmp_path / "cache")
    backend = StaticBackend(make_static_package(tmp_path, spec), config)
    report = backend.report()
    assert report.layout == "static caches, 4 rows of 256 tokens, growing up to 600"
    assert "caches of 600 tokens take any number" in report.rewrites
    tokens = random_tokens(580)
    whole = solo(backend, [], tokens)
    assert backend._slots.capacity == 600
    sequence = backend.open()
    step(backend, sequence, tokens[:200])
    assert backend._slots.capacity == 256
    assert np.array_equal(step(backend, sequence, tokens[200:], Logits.ALL), whole[200:])


def test_a_capacity_that_the_graph_counts_on_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = StaticSpec(capacity=600, context=1024, constant_capacity=True)
    backend = StaticBackend(make_static_package(tmp_path, spec), CONFIG)
    report = backend.report()
    assert report.layout == "static caches, 4 rows of 600 tokens"
    assert report.rewrites[-1].startswith("caches stay at 600 tokens")
    assert backend._slots.capacity == 600
    assert step(backend, backend.open(), [1, 2, 3]).shape == (1, 96)
    assert capfd.readouterr().err == ""


def test_a_freed_graph_with_other_results_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_session, "distance", lambda *_: 1.0)
    package = make_static_package(tmp_path, StaticSpec(capacity=600, context=1024))
    assert "stay at 600" in StaticBackend(package, CONFIG).report().rewrites[-1]


def test_tokens_are_written_in_place(open_tiny: OpenBackend) -> None:
    backend = open_tiny(spec=FREE)
    sequence = backend.open()
    step(backend, sequence, [1, 2, 3])
    buffers = [buffer.array[0, :, :5].copy() for buffer in backend._slots.buffers]
    backend.run([Row(sequence, [4])])
    for before, buffer in zip(buffers, backend._slots.buffers, strict=True):
        assert np.array_equal(buffer.array[0, :, :3], before[:, :3])
        assert np.any(buffer.array[0, :, 3] != 0)
        assert not np.any(buffer.array[0, :, 4])


def test_memory_is_given_back(open_tiny: OpenBackend) -> None:
    spec = replace(FREE, kv_heads=4, head_dim=64, context=4096)
    backend = open_tiny(spec=spec)
    keep, close = backend.open(), backend.open()
    step(backend, keep, random_tokens(64), Logits.NONE)
    step(backend, close, random_tokens(1000), Logits.NONE)
    assert resident(backend._slots.buffers[0].array) == backend.limits.bytes([64, 1000])
    backend.truncate(close, 128)
    assert resident(backend._slots.buffers[0].array) == backend.limits.bytes([64, 128])
    backend.close(close)
    step(backend, keep, [1], Logits.NONE)
    assert backend._slots.capacity == 256
    assert resident(backend._slots.buffers[0].array) == backend.limits.bytes([65])
    backend.shutdown()
    assert resident(backend._slots.buffers[0].array) == 0


@pytest.mark.parametrize("role", [Role.WRITE_INDICES, Role.KV_LENGTHS])
def test_a_cache_without_places_or_lengths_is_refused(tmp_path: Path, role: Role) -> None:
    package = make_static_package(tmp_path)
    with pytest.raises(UnsupportedModel, match=rf"no port for {role.value}|without a use"):
        StaticBackend(rebound(package, role, None), CONFIG)


def test_a_port_without_a_use_is_refused(tmp_path: Path) -> None:
    package = make_static_package(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"'position_ids'.*has no use"):
        StaticBackend(rebound(package, Role.POSITION_IDS, Role.ATTENTION_MASK), CONFIG)


def rebound(package: ModelPackage, role: Role, other: Role | None) -> ModelPackage:
    """Returns the package with a port in another role, or in none."""
    bindings = tuple(
        replace(binding, role=other) if binding.role is role else binding
        for binding in package.decoder.bindings
        if binding.role is not role or other is not None
    )
    return replace(package, components={"decoder": replace(package.decoder, bindings=bindings)})


def test_chunks_that_a_runtime_computes_wrongly_are_refused(tmp_path: Path) -> None:
    package = make_static_package(tmp_path)
    model = onnx.load(package.decoder.file)
    for node in model.graph.node:
        if node.op_type == "Attention":
            del node.attribute[:]
            node.attribute.extend(
                onnx.helper.make_attribute(name, value)
                for name, value in (("q_num_heads", 4), ("kv_num_heads", 2), ("is_causal", 0))
            )
    onnx.save(model, package.decoder.file)
    with pytest.raises(UnsupportedModel, match="computes chunks of a text wrongly"):
        StaticBackend(package, CONFIG)
