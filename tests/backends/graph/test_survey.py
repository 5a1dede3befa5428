"""Attention that is causal at both ends of the context, and something else between."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.decoding import feed, random_tokens
from support.plain_layer import HEADS, PORTS, VOCAB, make_layer, ports_of, save_layer
from support.plain_package import plain_package_of
from support.tiny_plain import PlainSpec, PortNames, make_plain
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.graph.apply import apply_rewrites
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.graph.site_mask import PlainMask
from tokenmill.backends.ort.open_backend import open_ort_backend
from tokenmill.backends.ort.plain_backend import PlainBackend

BETWEEN = """
    from = Constant<value_int = {}>()
    to = Constant<value_int = {}>()
    begun = GreaterOrEqual({}, from)
    ended = Less({}, to)
    is_between = And(begun, ended)
"""
MASK = """
    causal = LessOrEqual(tokens, queries)
    {between}
    {seen}
    there = And(is_between, seen_between)
    is_outside = Not(is_between)
    elsewhere = And(is_outside, causal)
    both = Or(there, elsewhere)
    allowed = And(both, unpadded)
    bias = Where(allowed, zero_f, lowest)
"""
HOLE = "few = Less(tokens, three) shown = Not(few) seen_between = And(causal, shown)"
WINDOW = """
    first = Sub(queries, four)
    near = Greater(tokens, first)
    seen_between = And(causal, near)
"""
ONE_HEAD = """
    few = Less(tokens, three)
    numbers = Range(zero0, four, one0)
    number = Reshape(numbers, by_head)
    others = Greater(number, zero0)
    shown = Not(few)
    either = Or(others, shown)
    seen_between = And(causal, either)
"""


def mask(start: int, stop: int, seen: str = HOLE, of: str = "queries") -> dict[str, str]:
    """A mask that is another for some queries, or in texts of some lengths."""
    return {"mask": MASK.format(between=BETWEEN.format(start, stop, of, of), seen=seen)}


def rewritten(file: Path, context: int = PORTS.context_length) -> Rewritten:
    ports = dataclasses.replace(PORTS, context_length=context)
    return apply_rewrites(file.read_bytes(), ports, file)


def with_heads(model: onnx.ModelProto) -> onnx.ModelProto:
    shape = onnx.numpy_helper.from_array(np.array([1, HEADS, 1, 1]), "by_head")
    model.graph.initializer.append(shape)
    return model


SCALED = """
    keys_t = Transpose<perm = [0, 1, 3, 2]>(keys)
    products = MatMul(q, keys_t)
    {between}
    factor = Where(is_between, cap, one_f)
    sharper = Mul(products, factor)
    scaled = Mul(sharper, scale)
    scores = Add(scaled, bias)
"""
NOT_CAUSAL = "its mask is neither causal nor a window"

REFUSED = {
    "a hole for queries in the middle": (mask(50, 60), NOT_CAUSAL),
    "a hole for one query": (mask(57, 58), NOT_CAUSAL),
    "a window in the middle": (mask(50, 60, WINDOW), NOT_CAUSAL),
    "a hole for one head": (mask(50, 60, ONE_HEAD), "its mask differs between heads"),
    "a hole in texts of one length": (mask(57, 58, of="total0"), NOT_CAUSAL),
    "a hole within a window": (
        {
            "mask": mask(50, 60, "seen_between = LessOrEqual(tokens, first)")["mask"].replace(
                "causal = LessOrEqual(tokens, queries)",
                """
                before = LessOrEqual(tokens, queries)
                first = Sub(queries, four)
                close = Greater(tokens, first)
                causal = And(before, close)
                """,
            )
        },
        NOT_CAUSAL,
    ),
    "scores scaled in the middle": (
        {"scores": SCALED.format(between=BETWEEN.format(50, 60, "queries", "queries"))},
        "it scales its scores in another way in longer texts",
    ),
    "scores scaled in texts of one length": (
        {"scores": SCALED.format(between=BETWEEN.format(57, 58, "total0", "total0"))},
        "it scales its scores in another way in longer texts",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_differs_only_in_the_middle_is_left_as_it_is(
    parts: dict[str, str], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(with_heads(make_layer(**parts)), file)
    result = rewritten(file)
    assert not result.shares_buffers
    (note,) = result.notes
    assert note.startswith(f"attention stays plain: layer 0: {reason}, in texts of ")


LATE = {
    "for queries after a constant": mask(20_000, 20_003),
    "for queries before a constant": mask(19_998, 20_001),
    "in texts of one length": mask(20_000, 20_001, of="total0"),
    "computed": {
        "mask": mask(20_000, 20_005)["mask"].replace(
            "from = Constant<value_int = 20000>()",
            """
            rows = Constant<value_int = 200>()
            columns = Constant<value_int = 100>()
            from = Mul(rows, columns)
            """,
        )
    },
    "wide, computed in many steps": {
        "mask": mask(0, 0)["mask"]
        .replace("from = Constant<value_int = 0>()", "half = Div(queries, three)")
        .replace("to = Constant<value_int = 0>()", "from = Constant<value_int = 1>()")
        .replace("begun = GreaterOrEqual(queries, from)", "third = Div(half, forty)")
        .replace("ended = Less(queries, to)", "tenth = Div(third, four) ninth = Div(tenth, forty)")
        .replace("is_between = And(begun, ended)", "is_between = Equal(ninth, from)")
    },
}


@pytest.mark.parametrize("parts", LATE.values(), ids=LATE)
def test_it_is_found_in_a_long_context_too(parts: dict[str, str], tmp_path: Path) -> None:
    result = rewritten(save_layer(tmp_path, **parts), 65_536)
    (note,) = result.notes
    assert note.startswith(f"attention stays plain: layer 0: {NOT_CAUSAL}, in texts of ")


def test_a_causal_mask_of_a_long_context_is_recognised(tmp_path: Path) -> None:
    result = rewritten(save_layer(tmp_path), 65_536)
    assert result.notes == ("attention of 1 layers rewritten to shared buffers",)


FLAGS = "flag = Gather(flags, queries) is_between = Cast<to = 9>(flag)"


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (4096, "layer 0: its mask is neither causal nor a window, in texts of 2343 tokens"),
        (16_384, "its mask is read from a table, in texts of more than 8192 tokens"),
    ],
)
def test_a_mask_that_is_read_from_a_table_is_looked_at_as_a_whole(
    context: int, reason: str, tmp_path: Path
) -> None:
    model = make_layer(mask=MASK.format(between=FLAGS, seen=HOLE))
    flags = np.zeros(context, np.int64)
    flags[2300] = 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(flags, "flags"))
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    assert rewritten(file, context).notes == (f"attention stays plain: {reason}",)


POSITIONS = """
    e = Gather(embedding, input_ids)
    p = Shape<start = 2, end = 3>(past_k)
    p0 = Squeeze(p)
    t = Shape<start = 1, end = 2>(attention_mask)
    t0 = Squeeze(t)
    r = Range(p0, t0, one0)
    {moved}
    r1 = Unsqueeze({at}, zero)
    place = Gather(places, r1)
    x = Add(e, place)
"""


@pytest.mark.parametrize(
    "moved",
    [
        BETWEEN.format(50, 60, "r", "r") + "at = Where(is_between, forty, r)",
        BETWEEN.format(57, 58, "t0", "t0") + "at = Where(is_between, zero0, r)",
    ],
    ids=["of some tokens", "in texts of one length"],
)
def test_positions_that_jump_in_the_middle_are_no_positions(moved: str, tmp_path: Path) -> None:
    result = rewritten(save_layer(tmp_path, embed=POSITIONS.format(moved=moved, at="at")))
    graph = onnx.ModelProto.FromString(result.graph or b"").graph
    # What chooses between positions is not taken for one.
    assert any(node.op_type == "Where" and "at" in node.output for node in graph.node)


def test_company_of_one_length_is_noticed(tmp_path: Path) -> None:
    embed = f"""
        e = Gather(embedding, input_ids)
        longest = Shape<start = 1, end = 2>(attention_mask)
        {BETWEEN.format(57, 58, "longest", "longest")}
        factor = Where(is_between, cap, one_f)
        x = Mul(e, factor)
    """
    result = rewritten(save_layer(tmp_path, embed=embed))
    assert result.rows_depend
    assert result.notes == (
        "attention stays plain: rows depend on the longest one of a call, by GroupQueryAttention",
    )


def test_a_mask_with_a_hole_runs_plain_and_right(tmp_path: Path) -> None:
    names = PortNames(
        position_ids=None,
        past_key="past_k",
        past_value="past_v",
        present_key="present_k",
        present_value="present_v",
    )
    spec = PlainSpec(layers=1, vocab=VOCAB, context=96, names=names, positions="none")
    tokens = random_tokens(80, VOCAB)

    def computed(parts: dict[str, str], folder: Path) -> np.ndarray:
        folder.mkdir()
        package = plain_package_of(save_layer(folder, **parts), spec)
        backend = open_ort_backend(package, BackendConfig(threads=1, max_rows=2))
        assert isinstance(backend, PlainBackend) == bool(parts)
        logits = feed(backend, backend.open(), tokens, 7)
        backend.shutdown()
        return logits

    causal = computed({}, tmp_path / "causal")
    holed = computed(mask(50, 60), tmp_path / "holed")
    session = onnx.reference.ReferenceEvaluator(str(tmp_path / "holed" / "model.onnx"))
    state = np.zeros((1, 2, 0, 8), np.float32)
    feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, 80), np.int64)}
    wanted = session.run(["logits"], {**feeds, "past_k": state, "past_v": state})[0][0]
    assert np.abs(holed - wanted).max() < 1e-4
    differs = np.abs(holed - causal).max(-1) > 1e-3
    assert np.flatnonzero(differs).tolist() == list(range(50, 60))


def test_layers_that_spell_their_masks_alike_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: Counter[Case] = Counter()
    check = PlainMask.check

    def counted(self: PlainMask, case: Case, *rest: Any) -> None:
        looked_at[case] += 1
        check(self, case, *rest)

    monkeypatch.setattr(PlainMask, "check", counted)
    spec = PlainSpec(layers=5)
    file = tmp_path / "model.onnx"
    onnx.save(make_plain(spec), file)
    assert apply_rewrites(file.read_bytes(), ports_of(spec), file).shares_buffers
    assert set(looked_at.values()) == {1}
