"""Plain past and present: which rows share calls, what is copied, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.decoding import feed, random_tokens, solo, step
from support.layouts import PLAIN
from support.plain_package import make_plain_package, plain_package_of
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from support.tiny_plain import PlainSpec, PortNames, make_plain
from tokenmill.backends.base import DecodeBackend, MultiTokenRows
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.ort import open_backend
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.calls import Company
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.core.errors import UnsupportedModel
from tokenmill.core.rows import Logits, Row
from tokenmill.package.model_package import ModelPackage, StateLayout

OpenBackend = Callable[..., DecodeBackend]

CONFIG = BackendConfig(threads=1, max_rows=4)
AS_IT_IS = Rewritten(None, False, ())
NO_MASK = PortNames(attention_mask=None)
NO_POSITIONS = PortNames(position_ids=None)
NEITHER = PortNames(attention_mask=None, position_ids=None)

ANY, EQUAL = Company(), Company(unequal_pasts=False, unequal_firsts=False)
FORMS = {
    "rotary": (PLAIN, ANY),
    "table": (replace(PLAIN, positions="table"), ANY),
    "learned": (replace(PLAIN, positions="learned", bias=True), ANY),
    "operator": (replace(PLAIN, attention="operator", positions="table"), ANY),
    "merged": (replace(PLAIN, merged=True), ANY),
    "positions from the mask": (replace(PLAIN, names=NO_POSITIONS), ANY),
    "no mask": (replace(PLAIN, names=NO_MASK), EQUAL),
    "neither": (replace(PLAIN, names=NEITHER), EQUAL),
    "uneven heads": (replace(PLAIN, kv_heads=(4, 1), window=3), ANY),
    "half": (replace(PLAIN, dtype="float16", ids_dtype="int32"), ANY),
}
every_form = pytest.mark.parametrize(("spec", "company"), FORMS.values(), ids=FORMS)


@every_form
def test_which_rows_share_a_call_is_found_out(
    open_tiny: OpenBackend, spec: PlainSpec, company: Company
) -> None:
    backend = open_tiny("plain", spec)
    assert backend._company == company
    assert backend._calls.several_with_past
    kind = MultiTokenRows.FIRST_CHUNK_RAGGED if company == ANY else MultiTokenRows.SOLO
    assert backend.limits.multi_token_rows is kind
    assert not backend.limits.numerics.batch_invariant


def test_rows_that_depend_on_the_longest_one_share_calls_with_equals(tmp_path: Path) -> None:
    spec = replace(PLAIN, names=NO_POSITIONS)
    package = make_plain_package(tmp_path, spec)
    rewritten = Rewritten(None, False, (), rows_depend=True)
    backend = PlainBackend(package, CONFIG, rewritten)
    assert backend._company == EQUAL
    assert backend.limits.multi_token_rows is MultiTokenRows.SOLO
    sequences = [backend.open() for _ in range(3)]
    for sequence, n in zip(sequences, (5, 9, 5), strict=True):
        step(backend, sequence, random_tokens(n))
    assert backend.run([Row(sequence, [1]) for sequence in sequences]).timings.calls == 2
    backend.shutdown()


@every_form
def test_every_form_agrees_with_the_reference(
    open_tiny: OpenBackend, spec: PlainSpec, company: Company
) -> None:
    backend, reference = open_tiny("plain", spec), open_tiny("reference", spec)
    tolerance = 2e-2 if spec.dtype == "float16" else 1e-5
    long, short = random_tokens(41), random_tokens(7, seed=1)
    expected = [solo(reference, [], text) for text in (long, short)]
    assert np.abs(solo(backend, [], long) - expected[0]).max() < tolerance
    sequences = [backend.open(), backend.open()]
    first = backend.run(
        [Row(sequences[0], long[:9], logits=Logits.ALL), Row(sequences[1], short[:3])]
    )
    assert first.timings.calls == (1 if company == ANY else 2)
    assert np.abs(first.rows[0].logits - expected[0][:9]).max() < tolerance
    for sequence, n in zip(sequences, (9, 3), strict=True):
        backend.commit(sequence, n)
    for i in range(4):
        outputs = backend.run([Row(sequences[0], [long[9 + i]]), Row(sequences[1], [short[3 + i]])])
        found = [output.logits[0] for output in outputs.rows]
        for logits, whole, at in zip(found, expected, (9 + i, 3 + i), strict=True):
            assert np.abs(logits - whole[at]).max() < tolerance
        for sequence in sequences:
            backend.commit(sequence, 1)


def test_an_unrewritten_head_gives_the_same(open_tiny: OpenBackend, tmp_path: Path) -> None:
    cut = open_tiny("plain")
    whole = PlainBackend(make_plain_package(tmp_path, PLAIN), CONFIG, AS_IT_IS)
    assert cut._calls.stepper.cuts_rows
    assert not whole._calls.stepper.cuts_rows
    sequences = [whole.open(), whole.open()]
    texts = random_tokens(9), random_tokens(4, seed=1)
    rows = [Row(s, text, logits=[2, 0]) for s, text in zip(sequences, texts, strict=True)]
    for output, text in zip(whole.run(rows).rows, texts, strict=True):
        assert np.abs(output.logits - solo(cut, [], text)[[2, 0]]).max() < 1e-5
    (output,) = whole.run([Row(sequences[0], [1, 2], logits=Logits.NONE)]).rows
    assert output.logits.shape == (0, 96)


def test_a_steady_batch_copies_nothing_and_takes_two_sides(
    open_tiny: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_tiny("plain")
    copies: list[int] = []
    gather = type(backend._frames)._gather
    monkeypatch.setattr(
        type(backend._frames),
        "_gather",
        lambda self, states: copies.append(len(states)) or gather(self, states),
    )
    sequences = [backend.open() for _ in range(3)]

    def decode(members: list[int]) -> None:
        backend.run([Row(sequences[i], [i]) for i in members])
        for i in members:
            backend.commit(sequences[i], 1)

    for sequence, n in zip(sequences, (70, 66, 90), strict=True):
        step(backend, sequence, random_tokens(n))
    for _ in range(8):
        decode([0, 1, 2])
    assert copies == [3]
    pool = backend._pool
    assert pool.live_bytes + pool.spare_bytes == backend.limits.bytes([78, 74, 98])
    decode([2, 0])
    decode([0, 2])
    # The one that waits no longer holds a frame of three; then the two that go on.
    assert copies == [3, 1, 2]


def test_an_uncommitted_run_keeps_the_past(open_tiny: OpenBackend) -> None:
    backend = open_tiny("plain")
    a, b = backend.open(), backend.open()
    for sequence in (a, b):
        step(backend, sequence, random_tokens(20))
    frames = [backend._frames.find(s).view for s in (a, b)]
    backend.run([Row(a, [1])])
    assert [backend._frames.find(s).view for s in (a, b)] == frames
    backend.run([])
    assert backend._frames.find(a).next_view is None


def test_closing_everything_gives_all_memory_back(open_tiny: OpenBackend) -> None:
    backend = open_tiny("plain")
    for n in (200, 3, 90):
        step(backend, backend.open(), random_tokens(n))
    assert backend._pool.live_bytes > 0
    backend.shutdown()
    assert backend._pool.live_bytes == backend._pool.spare_bytes == 0


def test_threads_change_no_bit(open_tiny: OpenBackend) -> None:
    spec = replace(PLAIN, hidden=128, heads=8, head_dim=32)
    tokens = random_tokens(100)
    results = []
    for threads in (1, 2):
        backend = open_tiny("plain", spec, threads=threads)
        results.append((solo(backend, [], tokens), solo(backend, tokens, [1])))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


def test_a_merged_graph_whose_second_branch_takes_single_tokens(tmp_path: Path) -> None:
    package = broken_branch(tmp_path)
    backend = PlainBackend(package, CONFIG, AS_IT_IS)
    assert not backend._calls.stepper.cache_first
    assert not backend._calls.several_with_past
    tokens = random_tokens(30)
    whole = solo(backend, [], tokens)
    sequence = backend.open()
    chunked = feed(backend, sequence, tokens, 7)
    assert np.abs(chunked - whole).max() < 1e-5
    assert backend.length(sequence) == 30
    picked = step(backend, sequence, [1, 2, 3], [2, 0])
    assert np.abs(picked - solo(backend, tokens, [1, 2, 3])[[2, 0]]).max() < 1e-5
    backend.run([Row(sequence, [4, 5, 6])])
    backend.commit(sequence, 2)
    assert backend.length(sequence) == 35
    backend.check_integrity()


def broken_branch(directory: Path) -> ModelPackage:
    """A merged decoder whose branch with a past has no causal mask, as one for single tokens."""
    spec = replace(PLAIN, merged=True)
    model = make_plain(spec)
    branch = next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    model.graph.initializer.append(numpy_helper.from_array(np.array(10**6), "far"))
    for node in branch.node:
        if node.op_type == "LessOrEqual":
            node.input[1] = "far"
    onnx.save(model, directory / "model.onnx")
    return plain_package_of(directory / "model.onnx", spec)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int32"])
def test_masks_of_other_types(open_tiny: OpenBackend, tmp_path: Path, dtype: str) -> None:
    model = make_plain(PLAIN)
    port = next(port for port in model.graph.input if port.name == "attention_mask")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    port.type.tensor_type.elem_type = kind
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[i] = "mask"
    model.graph.node.insert(
        0, helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.INT64)
    )
    onnx.save(model, tmp_path / "model.onnx")
    package = plain_package_of(tmp_path / "model.onnx", PLAIN)
    bindings = tuple(
        replace(b, port=replace(b.port, dtype=dtype)) if b.port.name == "attention_mask" else b
        for b in package.decoder.bindings
    )
    decoder = replace(package.decoder, bindings=bindings)
    backend = PlainBackend(replace(package, components={"decoder": decoder}), CONFIG)
    assert backend._company == ANY
    tokens = random_tokens(20)
    assert np.array_equal(solo(backend, [], tokens), solo(open_tiny("plain"), [], tokens))


def test_state_that_no_kernel_takes_is_refused(tmp_path: Path) -> None:
    package = make_plain_package(tmp_path, replace(PLAIN, dtype="bfloat16"))
    with pytest.raises(UnsupportedModel, match="bfloat16 in layer 0"):
        PlainBackend(package, CONFIG, AS_IT_IS)


def test_state_of_another_rank_is_refused(tmp_path: Path) -> None:
    package = make_plain_package(tmp_path, PLAIN)
    bindings = tuple(
        replace(b, port=replace(b.port, shape=("batch", "past", 16)))
        if b.port.name == "past_key_values.1.value"
        else b
        for b in package.decoder.bindings
    )
    decoder = replace(package.decoder, bindings=bindings)
    with pytest.raises(UnsupportedModel, match=r"'past_key_values\.1\.value'.*3 dimensions"):
        PlainBackend(replace(package, components={"decoder": decoder}), CONFIG, AS_IT_IS)


def test_a_graph_that_does_not_run_is_refused_at_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = make_plain_package(tmp_path, replace(PLAIN, vocab=4))
    with pytest.raises(UnsupportedModel, match="a few tokens without a past fail"):
        PlainBackend(replace(package, vocab_size=5000), CONFIG, AS_IT_IS)
    assert capfd.readouterr().err == ""


def test_the_layout_and_what_the_rewrites_reach_choose_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_plain_package(tmp_path, PLAIN)
    assert isinstance(open_backend.open_ort_backend(package, CONFIG), OrtBackend)
    kept = Rewritten(None, False, ("attention stays plain",))
    monkeypatch.setattr(open_backend, "rewrite_decoder", lambda *_: kept)
    backend = open_backend.open_ort_backend(package, CONFIG)
    assert isinstance(backend, PlainBackend)
    assert backend.report().rewrites == kept.notes
    with pytest.raises(UnsupportedModel, match="layout 'plain'"):
        OrtBackend(package, CONFIG, kept)


@pytest.mark.parametrize("layers", [(1,), (0, 1)], ids=["one layer", "all layers"])
def test_grouped_attention_whose_past_is_handed_over(
    tmp_path: Path, layers: tuple[int, ...]
) -> None:
    spec = TinySpec()
    package = make_package(tmp_path, spec)
    shared = OrtBackend(package, CONFIG)
    model = onnx.load(package.decoder.file)
    for layer in layers:
        name = f"past_key_values.{layer}.key"
        node = next(one for one in model.graph.node if name in one.input)
        node.input[3] = f"{name}.same"
        model.graph.node.insert(
            0, helper.make_node("Cast", [name], [node.input[3]], to=TensorProto.FLOAT)
        )
    onnx.save(model, package.decoder.file)
    state = replace(package.state, layout=StateLayout.PLAIN)
    plain = open_backend.open_ort_backend(replace(package, state=state), CONFIG)
    assert isinstance(plain, PlainBackend)
    long, short = random_tokens(30), random_tokens(11, seed=1)
    sequences = [plain.open(), plain.open()]
    for sequence, text in zip(sequences, (long, short), strict=True):
        assert np.abs(feed(plain, sequence, text, 7) - solo(shared, [], text)).max() < 1e-5
    outputs = plain.run([Row(sequence, [5]) for sequence in sequences]).rows
    for output, text in zip(outputs, (long, short), strict=True):
        assert np.abs(output.logits - solo(shared, text, [5])).max() < 1e-5
