"""The backend contract, over both backends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.decoding import random_tokens, solo, step
from tokenmill.backends.base import DecodeBackend, EncoderState
from tokenmill.core.errors import (
    Cancelled,
    Closed,
    ContextLengthExceeded,
    InvalidRequest,
    OutOfMemory,
    Unsupported,
)
from tokenmill.core.ids import AdapterId, Fingerprint, SequenceId
from tokenmill.core.pages import PageHandle, StateBlock
from tokenmill.core.rows import Argmax, Logits, Row, Splice

OpenBackend = Callable[..., DecodeBackend]

both = pytest.mark.parametrize("name", ["ort", "reference"])


@both
def test_e22_rewind_then_other_tokens_equals_a_fresh_sequence(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, [2, 10, 20, 30, 40])
    backend.truncate(sequence, 0)
    again = step(backend, sequence, [2, 11, 21])
    assert np.array_equal(again, solo(backend, [], [2, 11, 21])[-1:])
    assert backend.length(sequence) == 3


@both
def test_rewind_into_the_middle(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, random_tokens(70))
    backend.truncate(sequence, 33)
    again = step(backend, sequence, [1, 2], Logits.ALL)
    assert np.array_equal(again, solo(backend, random_tokens(70)[:33], [1, 2]))


@both
def test_fork_diverges_alone(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    tokens = random_tokens(9)
    step(backend, sequence, tokens)
    forked = backend.fork(sequence, 6)
    assert (backend.length(sequence), backend.length(forked)) == (9, 6)
    a = step(backend, forked, [1, 2])
    b = step(backend, sequence, [3, 4])
    assert np.array_equal(a, solo(backend, tokens[:6], [1, 2])[-1:])
    assert np.array_equal(b, solo(backend, tokens, [3, 4])[-1:])


@both
def test_exported_and_imported_state_continues_with_the_same_bits(
    open_tiny: OpenBackend, name: str
) -> None:
    source, target = open_tiny(name), open_tiny(name)
    tokens = random_tokens(40)
    sequence = source.open()
    step(source, sequence, tokens)
    blocks = [source.export_pages(sequence, 0, 16), source.export_pages(sequence, 16, 40)]
    source.close(sequence)
    other = target.open()
    for block in blocks:
        target.import_pages(other, block)
    assert target.length(other) == 40
    assert np.array_equal(step(target, other, [5]), solo(source, tokens, [5]))


@both
def test_an_exported_block_is_a_copy(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, [1, 2, 3])
    block = backend.export_pages(sequence, 0, 3)
    before = [layer.array.copy() for layer in block.layers]
    backend.truncate(sequence, 0)
    step(backend, sequence, [7, 8, 9])
    assert all(
        np.array_equal(layer.array, kept) for layer, kept in zip(block.layers, before, strict=True)
    )


@both
def test_a_run_without_commit_is_discarded(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, [1, 2, 3])
    backend.run([Row(sequence, [4, 5, 6])])
    second = step(backend, sequence, [7, 8])
    assert backend.length(sequence) == 5
    assert np.array_equal(second, solo(backend, [1, 2, 3], [7, 8])[-1:])


@both
def test_a_run_discards_uncommitted_tokens_of_sequences_outside_it(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    a, b = backend.open(), backend.open()
    backend.run([Row(a, [1, 2])])
    backend.run([Row(b, [1, 2])])
    with pytest.raises(InvalidRequest, match="cannot commit 1 tokens"):
        backend.commit(a, 1)


@both
def test_part_of_a_run_can_be_committed(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2, 3, 4])])
    backend.commit(sequence, 2)
    assert backend.length(sequence) == 2
    assert np.array_equal(step(backend, sequence, [9, 9])[0], solo(backend, [1, 2], [9, 9])[-1])


@both
def test_commit_of_nothing_is_allowed_at_any_time(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.commit(sequence, 0)
    backend.run([Row(sequence, [1])])
    backend.commit(sequence, 0)
    assert backend.length(sequence) == 0


@both
@pytest.mark.parametrize("n", [-1, 4])
def test_commit_of_more_than_was_run_is_refused(open_tiny: OpenBackend, name: str, n: int) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2, 3])])
    with pytest.raises(InvalidRequest, match="cannot commit"):
        backend.commit(sequence, n)
    backend.commit(sequence, 3)


@both
def test_wanted_logits_come_in_the_order_asked_for(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    whole = solo(backend, [], [1, 2, 3, 4, 5])
    asked = ((Logits.ALL, [0, 1, 2, 3, 4]), (Logits.LAST, [4]), (Logits.NONE, []), ([3, 0], [3, 0]))
    for logits, offsets in asked:
        output = backend.run([Row(sequence, [1, 2, 3, 4, 5], logits=logits)]).rows[0]
        assert output.logits is not None
        assert output.logits.dtype == np.float32
        assert output.logits.shape == (len(offsets), 96)
        assert np.array_equal(output.logits, whole[offsets])


@both
def test_an_empty_step_is_allowed(open_tiny: OpenBackend, name: str) -> None:
    assert open_tiny(name).run([]).rows == []


@both
def test_a_rows_own_fault_leaves_the_others_alone(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_context=20, max_rows=8)
    past = random_tokens(18)
    ids = [backend.open() for _ in range(6)]
    for sequence in ids:
        step(backend, sequence, past)
    faults = (
        Row(ids[0], [1, 2, 3]),
        Row(ids[1], [96]),
        Row(ids[2], [-1]),
        Row(ids[3], []),
        Row(ids[4], [1, 2], logits=[2]),
    )
    result = backend.run([*faults, Row(ids[5], [7])])
    kinds = [type(output.error) for output in result.rows]
    assert kinds == [ContextLengthExceeded, *[InvalidRequest] * 4, type(None)]
    assert "18 are there, 3 are new, and the context holds 20" in str(result.rows[0].error)
    assert np.array_equal(result.rows[5].logits, solo(backend, past, [7]))
    with pytest.raises(InvalidRequest):
        backend.commit(ids[0], 1)


@both
def test_cancelled_rows_come_back_as_cancelled(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    a, b, c = backend.open(), backend.open(), backend.open()
    rows = [
        Row(a, [1], cancelled=lambda: True),
        Row(b, [2]),
        Row(c, [3, 4], cancelled=lambda: True),
    ]
    result = backend.run(rows)
    assert [type(output.error) for output in result.rows] == [Cancelled, type(None), Cancelled]
    assert result.timings.calls == 1
    assert np.array_equal(result.rows[1].logits, solo(backend, [], [2]))


@both
@pytest.mark.parametrize(
    ("feature", "extra"),
    [
        ("embeds", {"embeds": (Splice(0, np.zeros((1, 64), np.float32)),)}),
        ("positions", {"positions": np.array([0])}),
        ("adapters", {"adapter": AdapterId("x")}),
        ("reduce", {"reduce": Argmax()}),
        ("hidden", {"hidden": True}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    open_tiny: OpenBackend, name: str, feature: str, extra: dict[str, object]
) -> None:
    backend = open_tiny(name)
    assert feature not in backend.limits.features
    sequence = backend.open()
    backend.run([Row(sequence, [1])])
    with pytest.raises(Unsupported, match=repr(feature)):
        backend.run([Row(sequence, [1], **extra)])
    backend.commit(sequence, 1)


@both
def test_pins_snapshots_and_encoder_state_are_refused(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("pin", lambda: backend.pin(sequence, 0, 0)),
        ("attach", lambda: backend.attach(sequence, PageHandle(0))),
        ("snapshot", lambda: backend.snapshot(sequence)),
        ("snapshot", lambda: backend.restore(sequence, StateBlock(0, (), Fingerprint("")))),
        ("encoder_state", lambda: backend.open(EncoderState(()))),
    ]
    for feature, attempt in attempts:
        with pytest.raises(Unsupported, match=repr(feature)):
            attempt()


@both
def test_unknown_and_closed_sequences_raise_closed(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    closed = backend.open()
    backend.close(closed)
    block = backend.export_pages(backend.open(), 0, 0)
    for sequence in (closed, SequenceId(99)):
        attempts: list[Callable[[], object]] = [
            lambda s=sequence: backend.length(s),
            lambda s=sequence: backend.run([Row(s, [1])]),
            lambda s=sequence: backend.commit(s, 0),
            lambda s=sequence: backend.truncate(s, 0),
            lambda s=sequence: backend.fork(s, 0),
            lambda s=sequence: backend.reserve(s, 1),
            lambda s=sequence: backend.export_pages(s, 0, 0),
            lambda s=sequence: backend.import_pages(s, block),
            lambda s=sequence: backend.close(s),
        ]
        for attempt in attempts:
            with pytest.raises(Closed):
                attempt()


@both
def test_closed_sequences_do_not_run_even_beside_open_ones(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2])])
    with pytest.raises(Closed):
        backend.run([Row(sequence, [3]), Row(SequenceId(99), [1])])
    backend.commit(sequence, 2)


@both
def test_a_sequence_stands_in_one_row_at_most(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    with pytest.raises(InvalidRequest, match="more than one row"):
        backend.run([Row(sequence, [1]), Row(sequence, [2])])


@both
def test_sequences_beyond_max_rows_are_out_of_memory(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_rows=2)
    first = backend.open()
    backend.open()
    with pytest.raises(OutOfMemory, match="all 2 rows are in use"):
        backend.open()
    with pytest.raises(OutOfMemory):
        backend.fork(first, 0)
    backend.close(first)
    assert backend.open() not in (first,)


@both
def test_reserve_beyond_the_context_is_out_of_memory(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_context=32)
    sequence = backend.open()
    backend.reserve(sequence, 32)
    with pytest.raises(OutOfMemory, match="33 tokens"):
        backend.reserve(sequence, 33)


@both
def test_ranges_past_the_end_are_refused(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, [1, 2, 3])
    backend.run([Row(sequence, [4])])
    attempts: list[Callable[[], object]] = [
        lambda: backend.truncate(sequence, 4),
        lambda: backend.truncate(sequence, -1),
        lambda: backend.fork(sequence, 4),
        lambda: backend.export_pages(sequence, 0, 4),
        lambda: backend.export_pages(sequence, 2, 1),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidRequest, match="3 committed tokens"):
            attempt()
    assert backend.length(sequence) == 3


@both
def test_blocks_that_do_not_fit_are_refused(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_context=64)
    sequence, other = backend.open(), backend.open()
    step(backend, sequence, random_tokens(40))
    step(backend, other, [1, 2])
    block = backend.export_pages(sequence, 2, 20)
    layer = block.layers[0]
    bad = (
        block._replace(fingerprint=Fingerprint("other")),
        block._replace(start=1),
        block._replace(stop=21),
        block._replace(stop=65),
        block._replace(layers=()),
        block._replace(layers=[layer._replace(kind="none"), *block.layers[1:]]),
    )
    for wrong in bad:
        with pytest.raises(InvalidRequest, match="does not continue"):
            backend.import_pages(other, wrong)
    assert backend.length(other) == 2
    backend.import_pages(other, block)
    assert backend.length(other) == 20


@both
def test_after_shutdown_everything_is_closed(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.shutdown()
    with pytest.raises(Closed):
        backend.run([Row(sequence, [1])])
    with pytest.raises(Closed, match="shut down"):
        backend.open()


@both
def test_the_context_can_be_filled_to_its_last_token(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    tokens = random_tokens(256)
    sequence = backend.open()
    step(backend, sequence, tokens[:255])
    last = step(backend, sequence, tokens[255:])
    assert np.allclose(last[0], solo(backend, [], tokens)[-1], atol=1e-5)
    output = backend.run([Row(sequence, [1])]).rows[0]
    assert isinstance(output.error, ContextLengthExceeded)


def test_fingerprints_tell_backends_and_packages_apart(open_tiny: OpenBackend) -> None:
    from support.tiny_onnx import TinySpec

    backends = [open_tiny("ort"), open_tiny("reference"), open_tiny("ort", TinySpec(seed=1))]
    assert len({backend.limits.fingerprint for backend in backends}) == 3
    assert open_tiny("ort").limits.fingerprint == backends[0].limits.fingerprint
