"""The backend contract, over all backends and layouts of state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.decoding import LogitsArray, feed, random_tokens, solo, step
from support.layouts import KINDS
from tokenmill.backends.base import DecodeBackend, EncoderState
from tokenmill.core.errors import (
    BackendError,
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

every_kind = pytest.mark.parametrize("name", KINDS)


def near(found: LogitsArray, expected: LogitsArray, *, exact: bool) -> bool:
    """Whether logits are the same bits, or where no bits are promised the same numbers."""
    if exact:
        return np.array_equal(found, expected)
    return found.shape == expected.shape and np.abs(found - expected).max(initial=0) < 1e-5


@every_kind
def test_rows_in_company_equal_rows_alone(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_rows=8)
    exact = backend.limits.numerics.batch_invariant
    work = [(0, 9), (20, 1), (12, 5), (0, 2), (40, 1), (0, 1), (31, 33), (12, 1)]
    texts = [random_tokens(past + new, seed=i) for i, (past, new) in enumerate(work)]
    alone = [
        solo(backend, text[:past], text[past:]) for text, (past, _) in zip(texts, work, strict=True)
    ]
    sequences = [backend.open() for _ in work]
    for sequence, text, (past, _) in zip(sequences, texts, work, strict=True):
        if past:
            step(backend, sequence, text[:past], Logits.NONE)
    rows = [
        Row(sequence, text[past:], logits=Logits.ALL)
        for sequence, text, (past, _) in zip(sequences, texts, work, strict=True)
    ]
    for _ in range(2):  # the second time the rows lie in other places
        outputs = backend.run(rows).rows
        for output, expected in zip(outputs, alone, strict=True):
            assert near(output.logits, expected, exact=exact)
        rows.reverse()
        alone.reverse()
    for sequence, (_, new) in zip(sequences, work, strict=True):
        backend.commit(sequence, new)
    after = [output.logits.copy() for output in backend.run([Row(s, [7]) for s in sequences]).rows]
    for sequence, text, (past, new), found in zip(sequences, texts, work, after, strict=True):
        backend.truncate(sequence, past)
        step(backend, sequence, text[past : past + new], Logits.NONE)
        assert near(found, step(backend, sequence, [7]), exact=exact)


@every_kind
def test_chunks_equal_the_whole(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    exact = backend.limits.numerics.chunk_invariant_from is not None
    tokens = random_tokens(100)
    whole = solo(backend, [], tokens)
    for chunk in (2, 7, 33, 64):
        sequence = backend.open()
        assert near(feed(backend, sequence, tokens, chunk), whole, exact=exact)
        backend.close(sequence)


@every_kind
def test_one_token_at_a_time_gives_the_same_greedy_ids(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    prompts = [random_tokens(3, seed=1), random_tokens(7, seed=2)]

    def greedy(batch: list[list[int]]) -> list[list[int]]:
        sequences = [backend.open() for _ in batch]
        pending, ids = [list(prompt) for prompt in batch], [[] for _ in batch]
        for _ in range(12):
            rows = [Row(s, tokens) for s, tokens in zip(sequences, pending, strict=True)]
            for i, output in enumerate(backend.run(rows).rows):
                token = int(np.argmax(output.logits[0]))
                backend.commit(sequences[i], len(pending[i]))
                pending[i] = [token]
                ids[i].append(token)
        for sequence in sequences:
            backend.close(sequence)
        return ids

    together = greedy(prompts)
    assert together == [greedy([prompt])[0] for prompt in prompts]
    text = prompts[1] + together[1]
    whole = solo(backend, [], text[:-1])
    assert np.argmax(whole[len(prompts[1]) - 1 :], axis=-1).tolist() == together[1]


@every_kind
def test_a_failing_step_advances_nothing_and_loses_nothing(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    sequence, other = backend.open(), backend.open()
    step(backend, sequence, [1, 2, 3])
    step(backend, other, [4])
    # The embedding has 96 rows; more tokens than that are let through to the runtime.
    backend._vocab_size = 1000
    with pytest.raises(BackendError, match="a model step failed"):
        backend.run([Row(sequence, [500]), Row(other, [5])])
    backend.check_integrity()
    backend.commit(sequence, 0)
    assert (backend.length(sequence), backend.length(other)) == (3, 1)
    assert np.array_equal(step(backend, sequence, [4]), solo(backend, [1, 2, 3], [4]))


@every_kind
def test_a_report_tells_backend_layout_and_claims(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    report = backend.report()
    layouts = {
        "ort": ("ort", "shared buffers, 4 rows of 256 tokens"),
        "reference": ("reference", "none, every step computes the whole text"),
        "plain": ("ort", "past and present, 4 rows padded to the longest, 256 tokens"),
        "plain, rewritten": ("ort", "shared buffers, 4 rows of 256 tokens"),
        "static": ("ort", "static caches, 4 rows of 256 tokens"),
        "static, fixed": ("ort", "static caches, 4 rows of 256 tokens"),
    }
    assert (report.backend, report.layout) == layouts[name]
    assert bool(report.rewrites) == (name == "plain, rewritten")
    assert report.claims["cpu"]["MatMul"] > 0


@every_kind
def test_closed_sequences_leave_their_rows_and_memory_to_others(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name, max_rows=3)
    expected = solo(backend, [], [1, 2, 3])
    for round_ in range(3):
        sequences = [backend.open() for _ in range(3)]
        for i, sequence in enumerate(sequences):
            step(backend, sequence, random_tokens(50 + 20 * i, seed=round_), Logits.NONE)
        assert backend.limits.bytes([backend.length(s) for s in sequences]) > 0
        for sequence in sequences:
            backend.close(sequence)
        backend.check_integrity()
        assert np.array_equal(solo(backend, [], [1, 2, 3]), expected)


@every_kind
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


@every_kind
def test_rewind_into_the_middle(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, random_tokens(70))
    backend.truncate(sequence, 33)
    again = step(backend, sequence, [1, 2], Logits.ALL)
    assert np.array_equal(again, solo(backend, random_tokens(70)[:33], [1, 2]))


@every_kind
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


@every_kind
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


@every_kind
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


@every_kind
def test_a_run_without_commit_is_discarded(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    step(backend, sequence, [1, 2, 3])
    backend.run([Row(sequence, [4, 5, 6])])
    second = step(backend, sequence, [7, 8])
    assert backend.length(sequence) == 5
    assert np.array_equal(second, solo(backend, [1, 2, 3], [7, 8])[-1:])


@every_kind
def test_a_run_discards_uncommitted_tokens_of_sequences_outside_it(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    a, b = backend.open(), backend.open()
    backend.run([Row(a, [1, 2])])
    backend.run([Row(b, [1, 2])])
    with pytest.raises(InvalidRequest, match="cannot commit 1 tokens"):
        backend.commit(a, 1)


@every_kind
def test_part_of_a_run_can_be_committed(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2, 3, 4])])
    backend.commit(sequence, 2)
    assert backend.length(sequence) == 2
    assert np.array_equal(step(backend, sequence, [9, 9])[0], solo(backend, [1, 2], [9, 9])[-1])


@every_kind
def test_commit_of_nothing_is_allowed_at_any_time(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.commit(sequence, 0)
    backend.run([Row(sequence, [1])])
    backend.commit(sequence, 0)
    assert backend.length(sequence) == 0


@every_kind
@pytest.mark.parametrize("n", [-1, 4])
def test_commit_of_more_than_was_run_is_refused(open_tiny: OpenBackend, name: str, n: int) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2, 3])])
    with pytest.raises(InvalidRequest, match="cannot commit"):
        backend.commit(sequence, n)
    backend.commit(sequence, 3)


@every_kind
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


@every_kind
def test_an_empty_step_is_allowed(open_tiny: OpenBackend, name: str) -> None:
    assert open_tiny(name).run([]).rows == []


@every_kind
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


@every_kind
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


@every_kind
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


@every_kind
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


@every_kind
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


@every_kind
def test_closed_sequences_do_not_run_even_beside_open_ones(
    open_tiny: OpenBackend, name: str
) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.run([Row(sequence, [1, 2])])
    with pytest.raises(Closed):
        backend.run([Row(sequence, [3]), Row(SequenceId(99), [1])])
    backend.commit(sequence, 2)


@every_kind
def test_a_sequence_stands_in_one_row_at_most(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    with pytest.raises(InvalidRequest, match="more than one row"):
        backend.run([Row(sequence, [1]), Row(sequence, [2])])


@every_kind
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


@every_kind
def test_reserve_beyond_the_context_is_out_of_memory(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name, max_context=32)
    sequence = backend.open()
    backend.reserve(sequence, 32)
    with pytest.raises(OutOfMemory, match="33 tokens"):
        backend.reserve(sequence, 33)


@every_kind
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


@every_kind
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


@every_kind
def test_after_shutdown_everything_is_closed(open_tiny: OpenBackend, name: str) -> None:
    backend = open_tiny(name)
    sequence = backend.open()
    backend.shutdown()
    with pytest.raises(Closed):
        backend.run([Row(sequence, [1])])
    with pytest.raises(Closed, match="shut down"):
        backend.open()


@every_kind
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
    backends = [open_tiny(name) for name in KINDS] + [open_tiny("ort", seed=1)]
    assert len({backend.limits.fingerprint for backend in backends}) == len(KINDS) + 1
    assert open_tiny("ort").limits.fingerprint == backends[0].limits.fingerprint
