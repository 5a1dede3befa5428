"""A tiny random decoder around TensorScatter and Attention, as exporters of static caches write it.

The other parts are those of `tiny_onnx`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.tiny_onnx import TinySpec, _add_norm, _Graph
from support.tiny_package import NO_TEXT
from tokenmill.core.ids import Fingerprint
from tokenmill.package.model_package import (
    AttentionState,
    Component,
    GenerationDefaults,
    ModelPackage,
    PackageForm,
    Port,
    PortBinding,
    Role,
    StateContract,
    StateLayout,
)


@dataclass(frozen=True, slots=True)
class StaticSpec(TinySpec):
    """The form of the cache.

    Attributes:
        capacity: tokens in the cache ports; None makes them symbolic.
        folded: caches are [batch, capacity, heads x dim], else [batch, heads, capacity, dim].
        constant_capacity: a node depends on the capacity as a number.
        ids_dtype: of ids and positions; the operators take the others as int64.
    """

    capacity: int | None = 128
    folded: bool = True
    constant_capacity: bool = False
    ids_dtype: str = "int64"


def make_static_decoder(spec: StaticSpec) -> onnx.ModelProto:
    """Returns the decoder's graph, weights inside."""
    g = _Graph(spec)
    integer = TensorProto.INT32 if spec.ids_dtype == "int32" else TensorProto.INT64
    ids = g.input("input_ids", integer, ["batch", "sequence"])
    positions = g.input("position_ids", integer, ["batch", "sequence"])
    if spec.ids_dtype == "int32":
        positions = g.node("Cast", [positions], to=TensorProto.INT64)
    write = g.input("write_indices", TensorProto.INT64, ["batch"])
    lengths = g.input("nonpad_kv_seqlen", TensorProto.INT64, ["batch"])
    steps = np.outer(
        np.arange(spec.context), 10000.0 ** (-np.arange(0, spec.head_dim, 2) / spec.head_dim)
    )
    cos, sin = (g.constant(f(steps).astype(np.float32)) for f in (np.cos, np.sin))
    one = g.constant(np.ones(spec.hidden, np.float32))
    embedding = g.rng.standard_normal((spec.vocab, spec.hidden)).astype(np.float32)
    residual = g.node("Gather", [g.constant(embedding), ids])
    normed = g.node("SimplifiedLayerNormalization", [residual, one], epsilon=1e-5)
    for layer in range(spec.layers):
        attention = _static_attention(g, spec, layer, normed, [write, lengths, positions, cos, sin])
        normed, residual = _add_norm(g, residual, attention, one)
        gate, up = (
            g.product(normed, g.random(spec.hidden, spec.ffn), spec.bits, spec.correction)
            for _ in range(2)
        )
        act = g.node("Mul", [g.node("Mul", [gate, g.node("Sigmoid", [gate])]), up])
        down = g.product(act, g.random(spec.ffn, spec.hidden), spec.bits, spec.correction)
        normed, residual = _add_norm(g, residual, down, one)
    g.product(normed, g.random(spec.hidden, spec.vocab), spec.head_bits, spec.correction)
    g.nodes[-1].output[0] = "logits"
    g.output("logits", TensorProto.FLOAT, ["batch", "sequence", spec.vocab])
    graph = helper.make_graph(g.nodes, "decoder", g.inputs, g.outputs, g.weights)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def make_static_package(directory: Path, spec: StaticSpec | None = None) -> ModelPackage:
    """Writes a decoder into `directory` and returns the package around it."""
    spec = spec or StaticSpec()
    file = directory / "model.onnx"
    onnx.save(make_static_decoder(spec), file)
    batch: tuple[int | str, ...] = ("batch", "sequence")
    bindings = [
        _binding("input_ids", Role.INPUT_IDS, spec.ids_dtype, batch),
        _binding("position_ids", Role.POSITION_IDS, spec.ids_dtype, batch),
        _binding("write_indices", Role.WRITE_INDICES, "int64", ("batch",)),
        _binding("nonpad_kv_seqlen", Role.KV_LENGTHS, "int64", ("batch",)),
    ]
    shape = _cache_shape(spec)
    for layer in range(spec.layers):
        for role, name in (
            (Role.PAST_KEY, f"key_cache.{layer}"),
            (Role.PAST_VALUE, f"value_cache.{layer}"),
            (Role.PRESENT_KEY, f"updated_key_cache.{layer}"),
            (Role.PRESENT_VALUE, f"updated_value_cache.{layer}"),
        ):
            bindings.append(_binding(name, role, "float32", shape, layer))
    bindings.append(_binding("logits", Role.LOGITS, "float32", (*batch, spec.vocab)))
    layers = tuple(
        AttentionState(layer, spec.kv_heads, spec.head_dim, "float32")
        for layer in range(spec.layers)
    )
    return ModelPackage(
        root=directory,
        form=PackageForm.INFERENCE_METADATA,
        fingerprint=Fingerprint(hashlib.sha256(repr(spec).encode()).hexdigest()),
        components={"decoder": Component("decoder", file, tuple(bindings), {}, 0)},
        state=StateContract(StateLayout.STATIC_CACHE, layers, spec.capacity),
        text=NO_TEXT,
        defaults=GenerationDefaults(),
        context_length=spec.context,
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
    )


def _static_attention(g: _Graph, spec: StaticSpec, layer: int, x: str, shared: list[str]) -> str:
    write, lengths, positions, cos, sin = shared
    widths = [spec.heads * spec.head_dim] + [spec.kv_heads * spec.head_dim] * 2
    q, k, v = (
        g.product(x, g.random(spec.hidden, width), spec.bits, spec.correction) for width in widths
    )
    q = g.node("RotaryEmbedding", [q, cos, sin, positions], num_heads=spec.heads)
    k = g.node("RotaryEmbedding", [k, cos, sin, positions], num_heads=spec.kv_heads)
    axis = 1 if spec.folded else 2
    caches = []
    for kind, update in (("key", k), ("value", v)):
        cache = f"{kind}_cache.{layer}"
        g.input(cache, TensorProto.FLOAT, list(_cache_shape(spec)))
        g.output(f"updated_{cache}", TensorProto.FLOAT, list(_cache_shape(spec)))
        if not spec.folded:
            folded = np.array([0, 0, spec.kv_heads, spec.head_dim], np.int64)
            update = g.node("Reshape", [update, g.constant(folded)])
            update = g.node("Transpose", [update], perm=[0, 2, 1, 3])
        g.node("TensorScatter", [cache, update, write], [f"updated_{cache}"], axis=axis)
        caches.append(f"updated_{cache}")
    if spec.constant_capacity:
        size = g.constant(np.array([0, spec.capacity, spec.kv_heads * spec.head_dim], np.int64))
        caches = [g.node("Reshape", [cache, size]) for cache in caches]
    if not spec.folded:
        # Q must be of the rank of K and V.
        heads = np.array([0, 0, spec.heads, spec.head_dim], np.int64)
        q = g.node("Transpose", [g.node("Reshape", [q, g.constant(heads)])], perm=[0, 2, 1, 3])
    out = g.node(
        "Attention",
        [q, *caches, "", "", "", lengths],
        is_causal=1,
        **({"q_num_heads": spec.heads, "kv_num_heads": spec.kv_heads} if spec.folded else {}),
    )
    if not spec.folded:
        back = np.array([0, 0, spec.heads * spec.head_dim], np.int64)
        out = g.node("Reshape", [g.node("Transpose", [out], perm=[0, 2, 1, 3]), g.constant(back)])
    w = g.random(spec.heads * spec.head_dim, spec.hidden)
    return g.product(out, w, spec.bits, spec.correction)


def _cache_shape(spec: StaticSpec) -> tuple[int | str, ...]:
    capacity: int | str = "max_sequence" if spec.capacity is None else spec.capacity
    if spec.folded:
        return "batch", capacity, spec.kv_heads * spec.head_dim
    return "batch", spec.kv_heads, capacity, spec.head_dim


def _binding(
    name: str, role: Role, dtype: str, shape: tuple[int | str, ...], layer: int | None = None
) -> PortBinding:
    is_input = role not in (Role.LOGITS, Role.PRESENT_KEY, Role.PRESENT_VALUE)
    return PortBinding(Port(name, dtype, shape, is_input), role, layer, "made by hand")
