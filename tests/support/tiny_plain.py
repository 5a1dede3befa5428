"""A tiny random decoder whose attention is spelled in plain operators, as exporters write it.

The numbers are real: the graph runs on ONNX Runtime. State passes as plain past and present, or
through a static cache; ports can be renamed, and both branches of a merged export be built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


class PortNames(NamedTuple):
    """Names of the ports; {} stands for the layer. None: the graph has no such port."""

    input_ids: str = "input_ids"
    attention_mask: str | None = "attention_mask"
    position_ids: str | None = "position_ids"
    past_key: str = "past_key_values.{}.key"
    past_value: str = "past_key_values.{}.value"
    present_key: str = "present.{}.key"
    present_value: str = "present.{}.value"
    logits: str = "logits"
    use_cache_branch: str = "use_cache_branch"
    write_indices: str = "write_indices"
    kv_lengths: str = "nonpad_kv_seqlen"


NAMES = PortNames()
STATIC_NAMES = PortNames(
    attention_mask=None,
    past_key="key_cache.{}",
    past_value="value_cache.{}",
    present_key="updated_key_cache.{}",
    present_value="updated_value_cache.{}",
)


@dataclass(frozen=True, slots=True)
class PlainSpec:
    """The decoder's size and spelling.

    Attributes:
        kv_heads: of every layer, or one number a layer.
        dtype: of weights, state and logits.
        ids_dtype: of the integer inputs.
        attention: "plain" (MatMul, Softmax, MatMul), "operator" (ONNX's Attention with past and
            present) or "static" (Attention over a cache that TensorScatter writes).
        positions: "rotary" (computed from frequencies), "table" (rotary, cosines and sines
            gathered from a table of `context` rows), "learned" (a second embedding) or "none".
        merged: both branches stand under an If that `use_cache_branch` steers.
        scale: of the scores; None is 1 / sqrt(head_dim).
        soft_cap: scores are capped by tanh.
        window: tokens that attention looks back at, in the mask.
        capacity: of a static cache.
        symbolic_heads: heads and dimension of the state ports are symbols.
        extra_output: a further output without a role.
        past: without, the graph computes a whole text and has no state.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int | tuple[int, ...] = 2
    head_dim: int = 8
    ffn: int = 48
    vocab: int = 64
    context: int = 128
    names: PortNames = NAMES
    dtype: str = "float32"
    ids_dtype: str = "int64"
    attention: str = "plain"
    positions: str = "rotary"
    merged: bool = False
    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    qk_norm: bool = False
    bias: bool = False
    capacity: int = 32
    symbolic_heads: bool = False
    extra_output: bool = False
    past: bool = True
    seed: int = 0

    def kv_heads_of(self, layer: int) -> int:
        """Of one layer."""
        return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[layer]


STATIC = PlainSpec(attention="static", positions="table", names=STATIC_NAMES)


class _Masks(NamedTuple):
    """What every layer of one branch needs beside the hidden states."""

    bias: str
    cos: str
    sin: str
    positions: str


class _Builder:
    """Collects nodes, weights and ports."""

    def __init__(self, spec: PlainSpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(spec.seed)
        self.dtype = DTYPES[spec.dtype]
        self.integer = DTYPES[spec.ids_dtype]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def constant(self, array: Any, dtype: int | None = None) -> str:
        values = np.asarray(array)
        if dtype == TensorProto.BFLOAT16:
            tensor = helper.make_tensor("", dtype, values.shape, values.ravel().tolist())
        else:
            wanted = values.dtype if dtype is None else helper.tensor_dtype_to_np_dtype(dtype)
            tensor = numpy_helper.from_array(np.array(values, wanted, order="C"))
        tensor.name = f"constant_{len(self.weights)}"
        self.weights[tensor.name] = tensor
        return tensor.name

    def weight(self, name: str, shape: tuple[int, ...], scale: float | None = None) -> str:
        """A random weight, made once whatever branch asks."""
        if name not in self.weights:
            values = self.rng.standard_normal(shape) * (scale or 1 / np.sqrt(shape[0]))
            self.weights[name] = self.weights.pop(self.constant(values, self.dtype))
            self.weights[name].name = name
        return name

    def node(self, operator: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any):
        self.count += 1
        outputs = outputs or (f"{operator}_{self.count}",)
        name = f"node_{self.count}"
        made = helper.make_node(operator, list(inputs), list(outputs), name=name, **attributes)
        self.nodes.append(made)
        return outputs[0]

    def port(self, name: str, dtype: int, shape: list[int | str], *, is_input: bool) -> str:
        info = helper.make_tensor_value_info(name, dtype, shape)
        (self.inputs if is_input else self.outputs).append(info)
        return name

    @contextmanager
    def branch(self) -> Iterator[list[onnx.NodeProto]]:
        """Nodes made meanwhile go to a list of their own."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def size(self, tensor: str, axis: int) -> str:
        """A scalar int64."""
        return self.node("Gather", self.node("Shape", tensor), self.constant(np.int64(axis)))

    def axes(self, *axes: int) -> str:
        return self.constant(np.array(axes, np.int64))


def make_plain(spec: PlainSpec) -> onnx.ModelProto:
    """Returns the decoder's graph, weights inside."""
    g = _Builder(spec)
    names = spec.names
    batch: list[int | str] = ["batch_size", "sequence_length"]
    g.port(names.input_ids, g.integer, batch, is_input=True)
    if names.attention_mask is not None:
        shape: list[int | str] = ["batch_size", "total_length"]
        g.port(names.attention_mask, g.integer, shape, is_input=True)
    if names.position_ids is not None and spec.positions != "none":
        g.port(names.position_ids, g.integer, batch, is_input=True)
    if spec.past:
        _state_ports(g)
    results = [names.logits]
    if spec.past:
        results += [
            template.format(layer)
            for layer in range(spec.layers)
            for template in (names.present_key, names.present_value)
        ]
    if spec.merged:
        g.port(names.use_cache_branch, TensorProto.BOOL, [1], is_input=True)
        _merge(g, results)
    else:
        made = _decoder(g, with_past=spec.past)
        for source, name in zip(made, results, strict=True):
            if source != name:
                g.node("Identity", source, outputs=(name,))
    g.port(names.logits, g.dtype, [*batch, spec.vocab], is_input=False)
    if spec.past:
        _state_outputs(g)
    if spec.extra_output:
        g.node("Identity", names.logits, outputs=("extra",))
        g.port("extra", g.dtype, [*batch, spec.vocab], is_input=False)
    graph = helper.make_graph(g.nodes, "decoder", g.inputs, g.outputs, list(g.weights.values()))
    opset = 18 if spec.attention == "plain" else 24
    versions = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10 if opset < 24 else 11)


def _state_shape(g: _Builder, layer: int, tokens: str) -> list[int | str]:
    spec, heads = g.spec, g.spec.kv_heads_of(layer)
    if spec.attention == "static":
        return ["batch_size", spec.capacity, heads * spec.head_dim]
    if spec.symbolic_heads:
        return ["batch_size", "kv_heads", tokens, "head_dim"]
    return ["batch_size", heads, tokens, spec.head_dim]


def _state_ports(g: _Builder) -> None:
    spec, names = g.spec, g.spec.names
    for layer in range(spec.layers):
        shape = _state_shape(g, layer, "past_length")
        for template in (names.past_key, names.past_value):
            g.port(template.format(layer), g.dtype, shape, is_input=True)
    if spec.attention == "static":
        for name in (names.write_indices, names.kv_lengths):
            g.port(name, TensorProto.INT64, ["batch_size"], is_input=True)


def _state_outputs(g: _Builder) -> None:
    for layer in range(g.spec.layers):
        shape = _state_shape(g, layer, "total_length")
        for template in (g.spec.names.present_key, g.spec.names.present_value):
            g.port(template.format(layer), g.dtype, shape, is_input=False)


def _merge(g: _Builder, results: list[str]) -> None:
    branches = {}
    for name, with_past in (("then_branch", True), ("else_branch", False)):
        with g.branch() as nodes:
            made = _decoder(g, with_past=with_past)
        infos = [helper.make_empty_tensor_value_info(one) for one in made]
        for info, like in zip(infos, results, strict=True):
            rank = 3 if like == g.spec.names.logits else 4
            shape = [f"{name}_{axis}" for axis in range(rank)]
            info.CopyFrom(helper.make_tensor_value_info(info.name, g.dtype, shape))
        branches[name] = helper.make_graph(nodes, name, [], infos)
    g.node("If", g.spec.names.use_cache_branch, outputs=tuple(results), **branches)


def _decoder(g: _Builder, *, with_past: bool) -> list[str]:
    """Builds one branch; returns logits and present state."""
    spec = g.spec
    masks = _masks(g, with_past=with_past)
    x = g.node("Gather", g.weight("embedding", (spec.vocab, spec.hidden), 1), spec.names.input_ids)
    if spec.positions == "learned":
        table = g.weight("position_embedding", (spec.context, spec.hidden), 0.5)
        x = g.node("Add", x, g.node("Gather", table, masks.positions))
    state = []
    for layer in range(spec.layers):
        attended, *present = _attention(g, layer, _norm(g, x, spec.hidden), masks, with_past)
        state += present
        x = g.node("Add", x, attended)
        h = _norm(g, x, spec.hidden)
        gate = _product(g, h, f"gate.{layer}", spec.hidden, spec.ffn)
        up = _product(g, h, f"up.{layer}", spec.hidden, spec.ffn)
        act = g.node("Mul", g.node("Mul", gate, g.node("Sigmoid", gate)), up)
        x = g.node("Add", x, _product(g, act, f"down.{layer}", spec.ffn, spec.hidden))
    return [_product(g, _norm(g, x, spec.hidden), "head", spec.hidden, spec.vocab), *state]


def _product(g: _Builder, x: str, name: str, k: int, n: int) -> str:
    y = g.node("MatMul", x, g.weight(name, (k, n)))
    return g.node("Add", y, g.weight(f"{name}.bias", (n,), 0.1)) if g.spec.bias else y


def _norm(g: _Builder, x: str, width: int) -> str:
    two, tiny = g.constant(2.0, g.dtype), g.constant(1e-5, g.dtype)
    mean = g.node("ReduceMean", g.node("Pow", x, two), g.axes(-1))
    scaled = g.node("Div", x, g.node("Sqrt", g.node("Add", mean, tiny)))
    return g.node("Mul", scaled, g.constant(np.ones(width), g.dtype))


def _masks(g: _Builder, *, with_past: bool) -> _Masks:
    """Builds positions, their cosines and sines, and the bias of the scores."""
    spec, names = g.spec, g.spec.names
    length = g.size(names.input_ids, 1)
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    past = zero
    if with_past and spec.attention != "static":
        past = g.size(names.past_key.format(0), 2)
    total = g.node("Add", past, length)
    slots = g.node("Range", past, total, one)
    positions = _positions(g, slots, past, total)
    bias = ""
    if spec.attention != "static":
        keys = g.node("Range", zero, total, one)
        rows = g.node("Unsqueeze", slots, g.axes(1))
        allowed = g.node("LessOrEqual", g.node("Unsqueeze", keys, g.axes(0)), rows)
        if spec.window is not None:
            least = g.node("Sub", rows, g.constant(np.int64(spec.window)))
            allowed = g.node("And", allowed, g.node("Greater", keys, least))
        if names.attention_mask is not None:
            seen = g.node("Cast", names.attention_mask, to=TensorProto.BOOL)
            allowed = g.node("And", allowed, g.node("Unsqueeze", seen, g.axes(1, 2)))
        off = g.constant(-65504.0 if spec.dtype == "float16" else -3e38, g.dtype)
        bias = g.node("Where", allowed, g.constant(0.0, g.dtype), off)
    return _Masks(bias, *_rotary_tables(g, positions), positions)


def _positions(g: _Builder, slots: str, past: str, total: str) -> str:
    """The positions of the new tokens, [batch or 1, new] int64."""
    names = g.spec.names
    if names.position_ids is not None and g.spec.positions != "none":
        return g.node("Cast", names.position_ids, to=TensorProto.INT64)
    if names.attention_mask is None:
        return g.node("Unsqueeze", slots, g.axes(0))
    mask = g.node("Cast", names.attention_mask, to=TensorProto.INT64)
    counted = g.node("CumSum", mask, g.constant(np.int64(1)))
    counted = g.node(
        "Max", g.node("Sub", counted, g.constant(np.int64(1))), g.constant(np.int64(0))
    )
    ends = (g.node("Unsqueeze", end, g.axes(0)) for end in (past, total))
    return g.node("Slice", counted, *ends, g.axes(1))


def _rotary_tables(g: _Builder, positions: str) -> tuple[str, str]:
    spec = g.spec
    if spec.positions not in ("rotary", "table"):
        return "", ""
    inverse = 10000.0 ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)
    if spec.positions == "table":
        angles = np.outer(np.arange(spec.context), inverse)
        tables = (g.constant(f(angles), g.dtype) for f in (np.cos, np.sin))
        cos, sin = (g.node("Gather", table, positions) for table in tables)
        if spec.attention != "plain":
            return cos, sin
        return _doubled(g, cos), _doubled(g, sin)
    at = g.node("Cast", g.node("Unsqueeze", positions, g.axes(2)), to=TensorProto.FLOAT)
    angles = g.node("MatMul", at, g.constant(inverse.reshape(1, -1), TensorProto.FLOAT))
    cos, sin = (g.node("Cast", g.node(f, angles), to=g.dtype) for f in ("Cos", "Sin"))
    return _doubled(g, cos), _doubled(g, sin)


def _doubled(g: _Builder, half: str) -> str:
    return g.node("Unsqueeze", g.node("Concat", half, half, axis=-1), g.axes(1))


def _rotate(g: _Builder, x: str, masks: _Masks, heads: int) -> str:
    """Rotates [batch, heads, new, dim], or [batch, new, heads * dim] for ONNX's operator."""
    if g.spec.positions not in ("rotary", "table"):
        return x
    if g.spec.attention != "plain" and g.spec.positions == "table":
        return g.node("RotaryEmbedding", x, masks.cos, masks.sin, num_heads=heads)
    half = g.spec.head_dim // 2
    low = g.node("Slice", x, g.axes(0), g.axes(half), g.axes(3))
    high = g.node("Slice", x, g.axes(half), g.axes(2**62), g.axes(3))
    turned = g.node("Concat", g.node("Neg", high), low, axis=-1)
    return g.node("Add", g.node("Mul", x, masks.cos), g.node("Mul", turned, masks.sin))


def _heads(g: _Builder, x: str, heads: int, *, norm: bool) -> str:
    """[batch, new, heads * dim] to [batch, heads, new, dim]."""
    split = g.node("Reshape", x, g.axes(0, 0, heads, g.spec.head_dim))
    if norm:
        split = _norm(g, split, g.spec.head_dim)
    return g.node("Transpose", split, perm=[0, 2, 1, 3])


def _attention(g: _Builder, layer: int, x: str, masks: _Masks, with_past: bool) -> tuple[str, ...]:
    """Returns the layer's output, and its present key and value where it has state."""
    spec, kv_heads = g.spec, g.spec.kv_heads_of(layer)
    q, k, v = (
        _product(g, x, f"{kind}.{layer}", spec.hidden, heads * spec.head_dim)
        for kind, heads in (("q", spec.heads), ("k", kv_heads), ("v", kv_heads))
    )
    past = [
        template.format(layer) if with_past else ""
        for template in (spec.names.past_key, spec.names.past_value)
    ]
    if spec.attention == "plain":
        mixed, *present = _plain_core(g, (q, k, v), past, masks, kv_heads)
    else:
        mixed, *present = _operator_core(g, (q, k, v), past, masks, kv_heads)
    out = _product(g, mixed, f"o.{layer}", spec.heads * spec.head_dim, spec.hidden)
    return (out, *(present if spec.past else ()))


def _plain_core(
    g: _Builder, qkv: tuple[str, str, str], past: list[str], masks: _Masks, kv_heads: int
) -> tuple[str, str, str]:
    spec = g.spec
    q = _rotate(g, _heads(g, qkv[0], spec.heads, norm=spec.qk_norm), masks, spec.heads)
    k = _rotate(g, _heads(g, qkv[1], kv_heads, norm=spec.qk_norm), masks, kv_heads)
    v = _heads(g, qkv[2], kv_heads, norm=False)
    if past[0]:
        k, v = (g.node("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    keys, values = (_repeat(g, tensor, kv_heads) for tensor in (k, v))
    scores = g.node("MatMul", q, g.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
    scores = g.node("Mul", scores, g.constant(scale, g.dtype))
    if spec.soft_cap is not None:
        cap = g.constant(spec.soft_cap, g.dtype)
        scores = g.node("Mul", g.node("Tanh", g.node("Div", scores, cap)), cap)
    weights = g.node("Softmax", g.node("Add", scores, masks.bias), axis=-1)
    mixed = g.node("Transpose", g.node("MatMul", weights, values), perm=[0, 2, 1, 3])
    return g.node("Reshape", mixed, g.axes(0, 0, spec.heads * spec.head_dim)), k, v


def _repeat(g: _Builder, x: str, kv_heads: int) -> str:
    """Repeats each head for the queries that share it."""
    times = g.spec.heads // kv_heads
    if times == 1:
        return x
    spread = g.node("Unsqueeze", x, g.axes(2))
    sizes = [g.node("Unsqueeze", g.size(x, axis), g.axes(0)) for axis in (0, 2)]
    shape = g.node(
        "Concat", sizes[0], g.axes(kv_heads, times), sizes[1], g.axes(g.spec.head_dim), axis=0
    )
    spread = g.node("Expand", spread, shape)
    merged = g.node(
        "Concat", sizes[0], g.axes(g.spec.heads), sizes[1], g.axes(g.spec.head_dim), axis=0
    )
    return g.node("Reshape", spread, merged)


def _operator_core(
    g: _Builder, qkv: tuple[str, str, str], past: list[str], masks: _Masks, kv_heads: int
) -> tuple[str, ...]:
    spec = g.spec
    q, k = _rotate(g, qkv[0], masks, spec.heads), _rotate(g, qkv[1], masks, kv_heads)
    attributes: dict[str, Any] = {"q_num_heads": spec.heads, "kv_num_heads": kv_heads}
    attributes["scale"] = spec.head_dim**-0.5 if spec.scale is None else spec.scale
    if spec.soft_cap is not None:
        attributes["softcap"] = spec.soft_cap
    if spec.attention == "operator":
        names = tuple(f"{kind}_{g.count}" for kind in ("mixed", "k", "v"))
        g.node("Attention", q, k, qkv[2], masks.bias, *past, outputs=names, **attributes)
        return names
    caches = [
        g.node("TensorScatter", old, new, spec.names.write_indices, axis=1)
        for old, new in zip(past, (k, qkv[2]), strict=True)
    ]
    mixed = g.node(
        "Attention", q, *caches, "", "", "", spec.names.kv_lengths, is_causal=1, **attributes
    )
    return mixed, *caches


def config_json(spec: PlainSpec) -> dict[str, Any]:
    """A configuration as `transformers` writes it; the shape of a Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": spec.head_dim,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context,
        "model_type": "llama",
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads_of(0),
        "vocab_size": spec.vocab,
    }


def tokenizer_json(spec: PlainSpec) -> dict[str, Any]:
    """A tokenizer of single letters that has `vocab` tokens."""
    controls = ("<pad>", "<s>", "</s>")
    vocab = {text: index for index, text in enumerate(controls)}
    for index in range(len(controls), spec.vocab):
        vocab[chr(ord("A") + index)] = index
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, text in enumerate(controls)
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def write_plain(
    directory: Path,
    spec: PlainSpec = PlainSpec(),
    *,
    file: str = "model.onnx",
    config: dict[str, Any] | bool | None = None,
    **documents: Any,
) -> Path:
    """Writes graph, config.json and tokenizer.json, and returns the directory.

    Args:
        file: the graph's name, below the directory.
        config: instead of `config_json(spec)`; False writes none.
        documents: further JSON files by stem, e.g. `generation_config={...}`.
    """
    target = directory / file
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(make_plain(spec), target)
    if config is not False:
        documents["config"] = config_json(spec) if config is None else config
    documents.setdefault("tokenizer", tokenizer_json(spec))
    for stem, document in documents.items():
        (directory / f"{stem}.json").write_text(json.dumps(document))
    return directory


def run_plain(
    model: onnx.ModelProto, spec: PlainSpec, ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Computes the logits [batch, tokens, vocab] of whole texts, from nothing, on ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = first_feeds(spec, ids)
    return session.run([spec.names.logits], feeds)[0]


def first_feeds(spec: PlainSpec, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Returns the inputs of a first step over `ids` [batch, tokens] with an empty past."""
    names, integer = spec.names, np.dtype(spec.ids_dtype)
    batch, length = ids.shape
    feeds: dict[str, NDArray[Any]] = {names.input_ids: ids.astype(integer)}
    if names.attention_mask is not None:
        feeds[names.attention_mask] = np.ones((batch, length), integer)
    if names.position_ids is not None and spec.positions != "none":
        feeds[names.position_ids] = np.tile(np.arange(length, dtype=integer), (batch, 1))
    if spec.merged:
        feeds[names.use_cache_branch] = np.array([False])
    if not spec.past:
        return feeds
    for layer in range(spec.layers):
        heads = spec.kv_heads_of(layer)
        shape: tuple[int, ...] = (batch, heads, 0, spec.head_dim)
        if spec.attention == "static":
            shape = (batch, spec.capacity, heads * spec.head_dim)
        for template in (names.past_key, names.past_value):
            feeds[template.format(layer)] = np.zeros(shape, np.dtype(spec.dtype))
    if spec.attention == "static":
        feeds[names.write_indices] = np.zeros(batch, np.int64)
        feeds[names.kv_lengths] = np.full(batch, length, np.int64)
    return feeds


def renamed(spec: PlainSpec) -> PlainSpec:
    """Returns the spec with port names that say nothing."""
    return replace(
        spec,
        names=PortNames(
            input_ids="a",
            attention_mask=None if spec.names.attention_mask is None else "b",
            position_ids=None if spec.names.position_ids is None else "c",
            past_key="d{}",
            past_value="e{}",
            present_key="f{}",
            present_value="g{}",
            logits="h",
            use_cache_branch="i",
            write_indices="j",
            kv_lengths="k",
        ),
    )
