"""A tiny random decoder around GroupQueryAttention, in the form that exporters write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TinySpec:
    """The decoder's size and form.

    Attributes:
        bits: of the weights: None for fp32, else MatMulNBits of 4 or 8 bits in blocks of 32.
        head_bits: the same for the head.
        packed: query, key and value are one product.
        correction: beside every quantised product stands (block sums of x) @ C in fp32.
        mask_needed: more than the attention's lengths depends on the attention mask.
        position_ids: the graph takes them as an input.
        external: weights go to `model.onnx.data`.
        logits_dtype: of the graph's output.
        window: tokens that attention looks back at; -1 for all.
        soft_cap: logits are capped by tanh, as some decoders do.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 96
    bits: int | None = None
    head_bits: int | None = None
    packed: bool = False
    correction: bool = False
    mask_needed: bool = False
    position_ids: bool = False
    external: bool = False
    logits_dtype: str = "float32"
    soft_cap: bool = False
    window: int = -1
    context: int = 256
    seed: int = 0


class _Graph:
    """Collects nodes, weights and ports."""

    def __init__(self, spec: TinySpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(spec.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def constant(self, array: NDArray[Any]) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(
        self, op: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any
    ) -> str:
        outputs = outputs or [f"{op}_{len(self.nodes)}"]
        domain = attributes.pop("domain", "")
        name = f"{op}_{len(self.nodes)}"
        made = helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)
        self.nodes.append(made)
        return outputs[0]

    def input(self, name: str, dtype: int, shape: list[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: list[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def random(self, k: int, n: int) -> Weights:
        return (self.rng.standard_normal((k, n)) * (1.0 / np.sqrt(k))).astype(np.float32)

    def product(self, x: str, w: Weights, bits: int | None, correction: bool) -> str:
        if bits is None:
            return self.node("MatMul", [x, self.constant(w)])
        k, n = w.shape
        blocks = w.T.reshape(n, k // 32, 32)
        top = 2 ** (bits - 1)
        scale = np.abs(blocks).max(-1, keepdims=True) / (top - 1)
        q = np.clip(np.round(blocks / scale) + top, 0, 2 * top - 1).astype(np.uint8)
        if bits == 4:
            q = q[..., 0::2] | (q[..., 1::2] << 4)
        y = self.node(
            "MatMulNBits",
            [x, self.constant(q), self.constant(scale.astype(np.float32).reshape(-1))],
            domain="com.microsoft",
            K=k,
            N=n,
            bits=bits,
            block_size=32,
            accuracy_level=4,
        )
        if not correction:
            return y
        sums = np.zeros((k, k // 32), np.float32)
        sums[np.arange(k), np.arange(k) // 32] = 1
        blocks_of_x = self.node("MatMul", [x, self.constant(sums)])
        c = (self.rng.standard_normal((k // 32, n)) * 0.01).astype(np.float32)
        return self.node("Add", [y, self.node("MatMul", [blocks_of_x, self.constant(c)])])


def make_decoder(spec: TinySpec) -> onnx.ModelProto:
    """Returns the decoder's graph, weights inside."""
    g = _Graph(spec)
    ids = g.input("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    lengths, total = _lengths(g)
    positions = ""
    if spec.position_ids:
        positions = g.input("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    steps = np.outer(
        np.arange(spec.context), 10000.0 ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)
    )
    cos, sin = (g.constant(f(steps).astype(np.float32)) for f in (np.cos, np.sin))
    one = g.constant(np.ones(spec.hidden, np.float32))
    embedding = g.rng.standard_normal((spec.vocab, spec.hidden)).astype(np.float32)
    residual = g.node("Gather", [g.constant(embedding), ids])
    if spec.mask_needed:
        first = g.node("Slice", ["attention_mask", *(g.constant(np.array([i])) for i in (0, 1, 1))])
        scale = g.node("Unsqueeze", [g.node("Cast", [first], to=1), g.constant(np.array([2]))])
        residual = g.node("Mul", [residual, scale])
    normed = g.node("SimplifiedLayerNormalization", [residual, one], epsilon=1e-5)
    for layer in range(spec.layers):
        attention = _attention(g, layer, normed, lengths, total, cos, sin, positions)
        normed, residual = _add_norm(g, residual, attention, one)
        gate, up = (
            g.product(normed, g.random(spec.hidden, spec.ffn), spec.bits, spec.correction)
            for _ in range(2)
        )
        act = g.node("Mul", [g.node("Mul", [gate, g.node("Sigmoid", [gate])]), up])
        down = g.product(act, g.random(spec.ffn, spec.hidden), spec.bits, spec.correction)
        normed, residual = _add_norm(g, residual, down, one)
    logits = g.product(normed, g.random(spec.hidden, spec.vocab), spec.head_bits, spec.correction)
    if spec.soft_cap:
        cap = g.constant(np.array(3.0, np.float32))
        logits = g.node("Mul", [g.node("Tanh", [g.node("Div", [logits, cap])]), cap])
    dtype = TensorProto.FLOAT
    if spec.logits_dtype == "float16":
        dtype = TensorProto.FLOAT16
        logits = g.node("Cast", [logits], to=dtype)
    g.nodes[-1].output[0] = "logits"
    g.output("logits", dtype, ["batch_size", "sequence_length", spec.vocab])
    graph = helper.make_graph(g.nodes, "decoder", g.inputs, g.outputs, g.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def save_decoder(spec: TinySpec, directory: Path) -> Path:
    """Writes `model.onnx` (and its data file where the spec asks for one)."""
    file = directory / "model.onnx"
    onnx.save(
        make_decoder(spec),
        file,
        save_as_external_data=spec.external,
        location="model.onnx.data" if spec.external else None,
        size_threshold=256,
    )
    return file


def _lengths(g: _Graph) -> tuple[str, str]:
    mask = g.input("attention_mask", TensorProto.INT64, ["batch_size", "total_length"])
    one = g.constant(np.array([1], np.int64))
    summed = g.node("ReduceSum", [mask, one], keepdims=0)
    lengths = g.node("Cast", [g.node("Sub", [summed, one])], to=TensorProto.INT32)
    axis = g.constant(np.array(1, np.int64))
    size = g.node("Gather", [g.node("Shape", [mask]), axis], axis=0)
    return lengths, g.node("Cast", [size], to=TensorProto.INT32)


def _attention(
    g: _Graph, layer: int, x: str, lengths: str, total: str, cos: str, sin: str, positions: str
) -> str:
    spec = g.spec
    widths = [spec.heads * spec.head_dim] + [spec.kv_heads * spec.head_dim] * 2
    projections = [g.random(spec.hidden, width) for width in widths]
    if spec.packed:
        packed = np.concatenate(projections, axis=1)
        q, k, v = g.product(x, packed, spec.bits, spec.correction), "", ""
    else:
        q, k, v = (g.product(x, w, spec.bits, spec.correction) for w in projections)
    shape: list[int | str] = ["batch_size", spec.kv_heads, "past_length", spec.head_dim]
    past = [
        g.input(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, shape)
        for kind in ("key", "value")
    ]
    present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
    for name in present:
        shape = ["batch_size", spec.kv_heads, "present_length", spec.head_dim]
        g.output(name, TensorProto.FLOAT, shape)
    inputs = [q, k, v, *past, lengths, total, cos, sin] + ([positions] if positions else [])
    out = g.node(
        "GroupQueryAttention",
        inputs,
        [f"attention_{layer}", *present],
        domain="com.microsoft",
        num_heads=spec.heads,
        kv_num_heads=spec.kv_heads,
        do_rotary=1,
        local_window_size=spec.window,
    )
    w = g.random(spec.heads * spec.head_dim, spec.hidden)
    return g.product(out, w, spec.bits, spec.correction)


def _add_norm(g: _Graph, residual: str, x: str, weight: str) -> tuple[str, str]:
    names = [f"normed_{len(g.nodes)}", "", "", f"residual_{len(g.nodes)}"]
    g.node(
        "SkipSimplifiedLayerNormalization",
        [residual, x, weight],
        names,
        domain="com.microsoft",
        epsilon=1e-5,
    )
    return names[0], names[3]
