"""One layer of plain attention in which any part can be spelled in another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from support.tiny_plain import PlainSpec, PortNames
from tokenmill.backends.graph.ports import DecoderPorts, StatePorts

NO_POSITIONS = PortNames(position_ids=None)
NO_MASK = PortNames(position_ids=None, attention_mask=None)

HEADS, KV_HEADS, DIM, VOCAB, CONTEXT = 4, 2, 8, 24, 96

PORTS = DecoderPorts(
    "logits",
    "attention_mask",
    "input_ids",
    state=(StatePorts("past_k", "past_v", "present_k", "present_v", KV_HEADS, DIM),),
    context_length=CONTEXT,
)

PARTS = {
    "embed": "x = Gather(embedding, input_ids)",
    "project": """
        q0 = MatMul(x, wq)
        q1 = Reshape(q0, split_q)
        q = Transpose<perm = [0, 2, 1, 3]>(q1)
        k0 = MatMul(x, wk)
        k1 = Reshape(k0, split_k)
        k = Transpose<perm = [0, 2, 1, 3]>(k1)
        v0 = MatMul(x, wv)
        v1 = Reshape(v0, split_k)
        v = Transpose<perm = [0, 2, 1, 3]>(v1)
    """,
    "append": """
        present_k = Concat<axis = 2>(past_k, k)
        present_v = Concat<axis = 2>(past_v, v)
    """,
    "sizes": """
        past = Shape<start = 2, end = 3>(past_k)
        total = Shape<start = 1, end = 2>(attention_mask)
        past0 = Squeeze(past)
        total0 = Squeeze(total)
        queries0 = Range(past0, total0, one0)
        queries = Unsqueeze(queries0, one)
        tokens = Range(zero0, total0, one0)
        seen = Cast<to = 9>(attention_mask)
        unpadded = Unsqueeze(seen, one_two)
    """,
    "mask": """
        causal = LessOrEqual(tokens, queries)
        allowed = And(causal, unpadded)
        bias = Where(allowed, zero_f, lowest)
    """,
    "repeat": """
        keys = Gather<axis = 1>(present_k, repeated)
        values = Gather<axis = 1>(present_v, repeated)
    """,
    "scores": """
        keys_t = Transpose<perm = [0, 1, 3, 2]>(keys)
        products = MatMul(q, keys_t)
        scaled = Mul(products, scale)
        scores = Add(scaled, bias)
    """,
    "softmax": "weights = Softmax<axis = -1>(scores)",
    "mix": """
        mixed = MatMul(weights, values)
        mixed1 = Transpose<perm = [0, 2, 1, 3]>(mixed)
        out = Reshape(mixed1, join)
    """,
    "end": """
        projected = MatMul(out, wo)
        hidden = Add(x, projected)
        logits = MatMul(hidden, head)
    """,
}

_CONSTANTS = {
    "split_q": np.array([0, 0, HEADS, DIM]),
    "split_k": np.array([0, 0, KV_HEADS, DIM]),
    "split_g": np.array([0, KV_HEADS, HEADS // KV_HEADS, -1, DIM]),
    "split_g_t": np.array([0, KV_HEADS, 1, DIM, -1]),
    "split_g_v": np.array([0, KV_HEADS, 1, -1, DIM]),
    "merge_g": np.array([0, HEADS, -1, DIM]),
    "merge_b": np.array([-1, 0, DIM]),
    "join": np.array([0, 0, HEADS * DIM]),
    "repeated": np.repeat(np.arange(KV_HEADS), HEADS // KV_HEADS),
    "tiled": np.tile(np.arange(KV_HEADS), HEADS // KV_HEADS),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "last": np.array([-1]),
    "one_two": np.array([1, 2]),
    "zero0": np.array(0),
    "one0": np.array(1),
    "three": np.array(3),
    "four": np.array(4),
    "forty": np.array(40),
    "zero_f": np.array(0, np.float32),
    "one_f": np.array(1, np.float32),
    "lowest": np.array(np.finfo(np.float32).min),
    "minus_10000": np.array(-10000, np.float32),
    "minus_inf": np.array(-np.inf, np.float32),
    "scale": np.array(DIM**-0.5, np.float32),
    "root_scale": np.array(DIM**-0.25, np.float32),
    "inverse_scale": np.array(DIM**0.5, np.float32),
    "cap": np.array(1.5, np.float32),
    "eight": np.array([DIM]),
    "four_1": np.array([HEADS]),
    "slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32).reshape(4, 1, 1),
    "sinks": np.array([0.5, 1.0, -1.0, 2.0], np.float32).reshape(1, 4, 1, 1),
}


def make_layer(opset: int = 21, **parts: str) -> onnx.ModelProto:
    """Returns the graph, with some of `PARTS` in other words."""
    assert parts.keys() <= PARTS.keys()
    body = "\n".join({**PARTS, **parts}.values())
    body = body.replace(")\n", ")\n").strip()
    state = f"{KV_HEADS}, {{}}, {DIM}"
    past, present = state.format("p"), state.format("t")
    text = f"""
        <ir_version: 10, opset_import: ["": {opset}]>
        decoder (
            int64[b, s] input_ids, int64[b, t] attention_mask,
            float[b, {past}] past_k, float[b, {past}] past_v
        ) => (
            float[b, s, {VOCAB}] logits,
            float[b, {present}] present_k, float[b, {present}] present_v
        ) {{ {body} }}
    """
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    width = HEADS * DIM
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(width)).astype(np.float32)
        for name, shape in (
            ("wq", (width, width)),
            ("wk", (width, KV_HEADS * DIM)),
            ("wv", (width, KV_HEADS * DIM)),
            ("wo", (width, width)),
            ("head", (width, VOCAB)),
        )
    }
    # Large scores, so that a wrong scale, cap or mask shows.
    weights["wq"] *= 4
    weights["embedding"] = rng.standard_normal((VOCAB, width)).astype(np.float32)
    weights["places"] = rng.standard_normal((CONTEXT, width)).astype(np.float32)
    for name, array in {**weights, **_CONSTANTS}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def save_layer(directory: Path, opset: int = 21, **parts: str) -> Path:
    """Writes the graph of `make_layer` and returns the file."""
    file = directory / "model.onnx"
    onnx.save(make_layer(opset, **parts), file)
    return file


def ports_of(spec: PlainSpec) -> DecoderPorts:
    """Returns the ports of a whole tiny decoder."""
    names = spec.names
    templates = names.past_key, names.past_value, names.present_key, names.present_value
    return DecoderPorts(
        names.logits,
        names.attention_mask,
        names.input_ids,
        None if spec.positions == "none" else names.position_ids,
        names.use_cache_branch if spec.merged else None,
        tuple(
            StatePorts(
                *(template.format(layer) for template in templates),
                spec.kv_heads_of(layer),
                spec.head_dim,
            )
            for layer in range(spec.layers)
        ),
        context_length=spec.context,
    )
