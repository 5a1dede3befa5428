"""Plain attention is recognised by what it computes; anything else is left, with the reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from support.plain_layer import (
    NO_MASK,
    NO_POSITIONS,
    PARTS,
    PORTS,
    make_layer,
    ports_of,
    save_layer,
)
from support.tiny_plain import PlainSpec, make_plain, renamed
from tokenmill.backends.graph.apply import apply_rewrites
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.ports import (
    LENGTHS_INPUT,
    POSITIONS_INPUT,
    TOTAL_INPUT,
    DecoderPorts,
    StatePorts,
)
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.graph.share_buffers import share_buffers
from tokenmill.backends.ort.probe import compare

FROM_LENGTHS = "positions computed from lengths"
TRANSPOSED = "keys_t = Transpose<perm = [0, 1, 3, 2]>(keys)"
MASKED = """
    scaled = Mul(products, scale)
    scores = Add(scaled, bias)
"""


def rewritten(file: Path, ports: DecoderPorts) -> Rewritten:
    return apply_rewrites(file.read_bytes(), ports, file)


class Decoder(NamedTuple):
    spec: PlainSpec
    notes: tuple[str, ...] = ()
    window: str = ""


DECODERS = {
    "rotary from frequencies": Decoder(PlainSpec()),
    "rotary from a table": Decoder(PlainSpec(positions="table")),
    "learned positions": Decoder(PlainSpec(positions="learned", qk_norm=True, bias=True)),
    "no positions": Decoder(PlainSpec(positions="none")),
    "one head of keys": Decoder(PlainSpec(kv_heads=1)),
    "no groups": Decoder(PlainSpec(kv_heads=4)),
    "layers of their own": Decoder(
        PlainSpec(kv_heads=(4, 1), soft_cap=5.0, window=3), window=", 2 with a window of 3"
    ),
    "another scale": Decoder(PlainSpec(scale=0.9, extra_output=True, symbolic_heads=True)),
    "positions from the mask": Decoder(PlainSpec(names=NO_POSITIONS), (FROM_LENGTHS,)),
    "positions from the past": Decoder(PlainSpec(names=NO_MASK), (FROM_LENGTHS,)),
    "renamed": Decoder(renamed(PlainSpec())),
    "half precision": Decoder(PlainSpec(dtype="float16", ids_dtype="int32")),
    "merged": Decoder(PlainSpec(merged=True), ("the branch with a past inlined",)),
    "merged, no positions": Decoder(
        PlainSpec(merged=True, names=NO_MASK), ("the branch with a past inlined", FROM_LENGTHS)
    ),
    "operator": Decoder(PlainSpec(attention="operator", positions="table")),
    "operator, positions from the mask": Decoder(
        PlainSpec(attention="operator", positions="table", names=NO_POSITIONS), (FROM_LENGTHS,)
    ),
    "operator with a cap and a window": Decoder(
        PlainSpec(attention="operator", names=NO_MASK, positions="learned", soft_cap=4.0, window=5),
        (FROM_LENGTHS,),
        ", 2 with a window of 5",
    ),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS.keys())
def test_a_decoder_computes_the_same_in_shared_buffers(decoder: Decoder, tmp_path: Path) -> None:
    file, ports = tmp_path / "model.onnx", ports_of(decoder.spec)
    onnx.save(make_plain(decoder.spec), file)
    result = rewritten(file, ports)
    done = f"attention of 2 layers rewritten to shared buffers{decoder.window}"
    assert result.notes == (done, *decoder.notes)
    assert result.shares_buffers
    assert result.graph is not None
    assert compare(file, result.graph, ports) is None
    graph = onnx.ModelProto.FromString(result.graph).graph
    inputs = {port.name for port in graph.input}
    assert {LENGTHS_INPUT, TOTAL_INPUT} <= inputs
    assert inputs.isdisjoint({ports.attention_mask, ports.use_cache_branch})
    operators = {node.op_type for node in graph.node}
    assert operators.isdisjoint({"Softmax", "Attention", "If", "TensorScatter"})
    dims = {
        port.name: [dim.dim_param for dim in port.type.tensor_type.shape.dim]
        for port in (*graph.input, *graph.output)
    }
    for layer in ports.state:
        assert {dims[name][2] for name in (*layer.past, *layer.present)} == {"capacity"}


SPELLINGS = {
    "as it is": {},
    "scale on the queries": {
        "scores": f"{TRANSPOSED} qs = Mul(q, scale) products = MatMul(qs, keys_t) "
        "scores = Add(products, bias)"
    },
    "scale on the keys": {
        "scores": f"{TRANSPOSED} ks = Mul(keys_t, scale) products = MatMul(q, ks) "
        "scores = Add(products, bias)"
    },
    "root of the scale on both": {
        "scores": f"{TRANSPOSED} ks = Mul(keys_t, root_scale) qs = Mul(root_scale, q) "
        "products = MatMul(qs, ks) scores = Add(products, bias)"
    },
    "division": {
        "scores": f"{TRANSPOSED} products = MatMul(q, keys_t) "
        "scaled = Div(products, inverse_scale) scores = Add(bias, scaled)"
    },
    "einsum": {
        "scores": 'products = Einsum<equation = "bhqd,bhkd->bhqk">(q, keys)' + MASKED,
    },
    "scores are replaced": {
        "scores": f"{TRANSPOSED} products = MatMul(q, keys_t) scaled = Mul(products, scale) "
        "scores = Where(allowed, scaled, minus_10000)"
    },
    "infinite mask": {"mask": PARTS["mask"].replace("lowest", "minus_inf")},
    "mask by subtraction": {
        "mask": """
            causal = LessOrEqual(tokens, queries)
            allowed = And(causal, unpadded)
            one_or_zero = Cast<to = 1>(allowed)
            inverted = Sub(one_f, one_or_zero)
            bias = Mul(inverted, lowest)
        """
    },
    "soft cap": {
        "scores": f"{TRANSPOSED} products = MatMul(q, keys_t) scaled = Mul(products, scale) "
        "small = Div(scaled, cap) bent = Tanh(small) capped = Mul(bent, cap) "
        "scores = Add(capped, bias)"
    },
    "not a number is 0": {
        "softmax": """
            soft = Softmax(scores)
            wrong = IsNaN(soft)
            weights = Where(wrong, zero_f, soft)
        """
    },
    "heads repeated by expansion": {
        "repeat": """
            shape4 = Shape(present_k)
            batch = Slice(shape4, zero, one)
            kv = Slice(shape4, one, two)
            expanded = Concat<axis = 0>(batch, kv, two, total, dim)
            merged = Concat<axis = 0>(batch, heads, total, dim)
            k5 = Unsqueeze(present_k, two)
            k6 = Expand(k5, expanded)
            keys = Reshape(k6, merged)
            v5 = Unsqueeze(present_v, two)
            v6 = Expand(v5, expanded)
            values = Reshape(v6, merged)
        """.replace("dim)", "eight)").replace("heads,", "four_1,")
    },
    "groups as an axis": {
        "repeat": """
            keys = Unsqueeze(present_k, two)
            values = Unsqueeze(present_v, two)
        """,
        "scores": """
            grouped = Reshape(q, split_g)
            keys_t = Transpose<perm = [0, 1, 2, 4, 3]>(keys)
            products = MatMul(grouped, keys_t)
            scaled = Mul(products, scale)
            bias5 = Unsqueeze(bias, one)
            scores = Add(scaled, bias5)
        """,
        "mix": """
            mixed0 = MatMul(weights, values)
            mixed = Reshape(mixed0, merge_g)
            mixed1 = Transpose<perm = [0, 2, 1, 3]>(mixed)
            out = Reshape(mixed1, join)
        """,
    },
    "operator after the append": {
        "opset": 23,
        "scores": "mixed = Attention(q, present_k, present_v, bias)",
        "repeat": "",
        "softmax": "",
        "mix": "mixed1 = Transpose<perm = [0, 2, 1, 3]>(mixed) out = Reshape(mixed1, join)",
    },
    "operator, 4-D, mask of truth values": {
        "opset": 23,
        "append": "",
        "repeat": "",
        "scores": "mixed, present_k, present_v = Attention(q, k, v, allowed, past_k, past_v)",
        "softmax": "",
        "mix": "mixed1 = Transpose<perm = [0, 2, 1, 3]>(mixed) out = Reshape(mixed1, join)",
    },
    "operator, 3-D": {
        "opset": 23,
        "append": "",
        "repeat": "",
        "scores": "out, present_k, present_v = Attention"
        "<q_num_heads = 4, kv_num_heads = 2, scale = 0.7>(q0, k0, v0, bias, past_k, past_v)",
        "softmax": "",
        "mix": "",
    },
    "window": {
        "mask": """
            causal = LessOrEqual(tokens, queries)
            first = Sub(queries, four)
            near = Greater(tokens, first)
            both = And(causal, near)
            allowed = And(both, unpadded)
            bias = Where(allowed, zero_f, lowest)
        """
    },
    "positions from the past": {
        "embed": """
            e = Gather(embedding, input_ids)
            p = Shape<start = 2, end = 3>(past_k)
            p0 = Squeeze(p)
            t = Shape<start = 1, end = 2>(attention_mask)
            t0 = Squeeze(t)
            r = Range(p0, t0, one0)
            r1 = Unsqueeze(r, zero)
            place = Gather(places, r1)
            x = Add(e, place)
        """
    },
    "positions up to a limit": {
        "embed": """
            e = Gather(embedding, input_ids)
            p = Shape<start = 2, end = 3>(past_k)
            p0 = Squeeze(p)
            t = Shape<start = 1, end = 2>(attention_mask)
            t0 = Squeeze(t)
            r = Range(p0, t0, one0)
            r1 = Unsqueeze(r, zero)
            limited = Min(r1, forty)
            place = Gather(places, limited)
            x = Add(e, place)
        """
    },
    "table cut to the length": {
        "embed": """
            e = Gather(embedding, input_ids)
            m = CumSum(attention_mask, one0)
            m1 = Sub(m, one0)
            p = Shape<start = 2, end = 3>(past_k)
            t = Shape<start = 1, end = 2>(attention_mask)
            at = Slice(m1, p, t, one)
            table = Slice(places, zero, t)
            place = Gather(table, at)
            x = Add(e, place)
        """
    },
}
WINDOWS = {"window": ", 1 with a window of 4"}


@pytest.mark.parametrize("name", SPELLINGS)
def test_any_spelling_is_recognised(name: str, tmp_path: Path) -> None:
    file = save_layer(tmp_path, **SPELLINGS[name])
    result = rewritten(file, PORTS)
    done = "attention of 1 layers rewritten to shared buffers" + WINDOWS.get(name, "")
    assert result.notes[0] == done
    assert result.graph is not None
    assert compare(file, result.graph, PORTS) is None
    graph = onnx.ModelProto.FromString(result.graph).graph
    assert any(node.op_type == "Min" for node in graph.node) == ("limit" in name)


REFUSED = {
    "bias by distance": (
        {
            "mask": """
                causal = LessOrEqual(tokens, queries)
                allowed = And(causal, unpadded)
                far = Sub(tokens, queries)
                distance = Cast<to = 1>(far)
                sloped = Mul(slopes, distance)
                bias = Where(allowed, sloped, lowest)
            """
        },
        "layer 0: it adds a bias to its scores",
    ),
    "both directions": (
        {"mask": "allowed = Identity(unpadded) bias = Where(allowed, zero_f, lowest)"},
        "layer 0: its mask is neither causal nor a window",
    ),
    "prefix that sees itself": (
        {
            "mask": """
                causal = LessOrEqual(tokens, queries)
                prefix = Less(tokens, three)
                either = Or(causal, prefix)
                allowed = And(either, unpadded)
                bias = Where(allowed, zero_f, lowest)
            """
        },
        "layer 0: its mask is neither causal nor a window",
    ),
    "blocks": (
        {
            "mask": """
                causal = LessOrEqual(tokens, queries)
                block = Div(tokens, four)
                own = Div(queries, four)
                same = Equal(block, own)
                both = And(causal, same)
                allowed = And(both, unpadded)
                bias = Where(allowed, zero_f, lowest)
            """
        },
        "layer 0: its mask is neither causal nor a window",
    ),
    "sinks": (
        {
            "softmax": """
                column = Slice(scores, zero, one, last)
                off = Sub(column, column)
                sink = Add(off, sinks)
                wider = Concat<axis = -1>(scores, sink)
                soft = Softmax(wider)
                weights = Slice(soft, zero, last, last)
            """
        },
        "layer 0: its softmax is not one over its scores alone",
    ),
    "heads in turn": (
        {"repeat": PARTS["repeat"].replace("repeated", "tiled")},
        "layer 0: its scores are not products of queries and repeated keys",
    ),
    "another bend": (
        {
            "scores": f"{TRANSPOSED} products = MatMul(q, keys_t) bent = Sigmoid(products) "
            "level = Mul(bent, products) scores = Add(level, bias)"
        },
        "layer 0: its scores are neither scaled nor capped by tanh",
    ),
    "keys on the left": (
        {
            "scores": """
                q_t = Transpose<perm = [0, 1, 3, 2]>(q)
                turned = MatMul(keys, q_t)
                products = Transpose<perm = [0, 1, 3, 2]>(turned)
            """
            + MASKED
        },
        "layer 0: its products have their operands in another order",
    ),
    "state in another order": (
        {"append": PARTS["append"].replace("past_k, k", "k, past_k")},
        "layer 0: 'present_k' is not 'past_k' with new tokens appended",
    ),
    "positions that all rows share": (
        {"embed": SPELLINGS["positions from the past"]["embed"].replace("places, r1", "places, r")},
        "the length of 'past_k' is needed outside attention, by Shape",
    ),
    "mask with another use": (
        {
            "embed": """
                e = Gather(embedding, input_ids)
                tokens_seen = Cast<to = 1>(attention_mask)
                most = ReduceSum<keepdims = 0>(tokens_seen)
                x = Mul(e, most)
            """
        },
        "the mask is needed outside attention, by Cast",
    ),
    "scores scaled in longer texts": (
        {
            "scores": f"""
                {TRANSPOSED}
                is_far = Greater(total0, forty)
                factor = Where(is_far, cap, one_f)
                products = MatMul(q, keys_t)
                sharper = Mul(products, factor)
                scaled = Mul(sharper, scale)
                scores = Add(scaled, bias)
            """
        },
        "layer 0: it computes something else in longer texts",
    ),
    "keys scaled late in a text": (
        {
            "repeat": """
                repeated_k = Gather<axis = 1>(present_k, repeated)
                is_far = Greater(tokens, forty)
                factor = Where(is_far, cap, one_f)
                factors = Unsqueeze(factor, last)
                keys = Mul(repeated_k, factors)
                values = Gather<axis = 1>(present_v, repeated)
            """
        },
        "layer 0: it computes something else in longer texts",
    ),
    "embeddings that depend on the longest row": (
        {
            "embed": """
                e = Gather(embedding, input_ids)
                longest = Shape<start = 1, end = 2>(attention_mask)
                is_far = Greater(longest, forty)
                factor = Where(is_far, cap, one_f)
                x = Mul(e, factor)
            """
        },
        "rows depend on the longest one of a call, by GroupQueryAttention",
    ),
    "operator that counts from the first query": (
        {
            **SPELLINGS["operator after the append"],
            "scores": "mixed = Attention<is_causal = 1>(q, present_k, present_v)",
        },
        "layer 0: its mask is neither causal nor a window",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_other_attention_is_left_as_it_is(
    parts: dict[str, str], reason: str, tmp_path: Path
) -> None:
    file = save_layer(tmp_path, **parts)
    result = rewritten(file, PORTS)
    assert not result.shares_buffers
    assert result.notes == (f"attention stays plain: {reason}",)
    assert result.graph is not None
    graph = onnx.ModelProto.FromString(result.graph).graph
    assert LENGTHS_INPUT not in {port.name for port in graph.input}
    kept = [node for node in graph.node if not node.name.startswith(POSITIONS_INPUT)]
    assert len(kept) == len(make_layer(**parts).graph.node)


def test_logits_that_depend_on_the_longest_row_are_left_as_they_are(tmp_path: Path) -> None:
    end = """
        projected = MatMul(out, wo)
        hidden = Add(x, projected)
        is_far = Greater(total0, forty)
        factor = Where(is_far, cap, one_f)
        logits_of_all = MatMul(hidden, head)
        logits = Mul(logits_of_all, factor)
    """
    result = rewritten(save_layer(tmp_path, end=end), PORTS)
    reason = "rows depend on the longest one of a call, by Mul"
    assert result == Rewritten(None, False, (f"attention stays plain: {reason}",), rows_depend=True)


def test_a_window_that_no_short_text_shows_is_found(tmp_path: Path) -> None:
    spec = PlainSpec(window=40)
    file = tmp_path / "model.onnx"
    onnx.save(make_plain(spec), file)
    result = rewritten(file, ports_of(spec))
    assert result.notes == (
        "attention of 2 layers rewritten to shared buffers, 2 with a window of 40",
    )
    assert result.graph is not None
    assert compare(file, result.graph, ports_of(spec)) is None


def test_heads_that_the_operator_does_not_take_stay_plain(tmp_path: Path) -> None:
    spec = PlainSpec(head_dim=12)
    file = tmp_path / "model.onnx"
    onnx.save(make_plain(spec), file)
    result = rewritten(file, ports_of(spec))
    assert result.notes == ("attention stays plain: layer 0: its heads of 12 are no multiple of 8",)
    assert not result.shares_buffers


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"append": PARTS["append"].replace("<axis = 2>", "")}, "it cannot be looked at (Stop"),
        ({"embed": "x0 = Gather(embedding, input_ids) x = Add(x0, logits)"}, "goes in a circle"),
        ({"embed": "x = Custom(embedding, input_ids)"}, ""),
        ({"scores": f"{TRANSPOSED} products = Custom(q, keys_t)" + MASKED}, "layer 0: "),
    ],
    ids=["no axis", "circle", "unknown operator", "unknown product"],
)
def test_a_graph_that_is_not_sound_is_left_as_it_is(
    parts: dict[str, str], reason: str, tmp_path: Path
) -> None:
    model = make_layer(**parts)
    before = model.SerializeToString()
    applied, (note,), _ = share_buffers(model, PORTS, OutsideWeights(tmp_path))
    assert not applied
    assert reason in note
    assert model.SerializeToString() == before


def test_a_graph_without_the_ports_is_left_as_it_is(tmp_path: Path) -> None:
    model = make_layer()
    ports = dataclasses.replace(
        PORTS, state=(StatePorts("absent", "past_v", "present_k", "present_v", 2, 8),)
    )
    before = model.SerializeToString()
    assert not share_buffers(model, ports, OutsideWeights(tmp_path))[0]
    assert model.SerializeToString() == before
