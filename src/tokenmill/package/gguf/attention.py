"""Adds one layer's attention to a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.package.gguf.architectures import Architecture, RopeLayout
from tokenmill.package.gguf.blocks import Blocks, Floats
from tokenmill.package.gguf.geometry import Geometry
from tokenmill.package.gguf.graph import (
    MICROSOFT,
    GraphBuilder,
    Matrix,
    can_stack,
    stack_biases,
    stack_matrices,
)
from tokenmill.package.gguf.weights import Weights


def add_attention(
    graph: GraphBuilder,
    weights: Weights,
    architecture: Architecture,
    geometry: Geometry,
    layer: int,
    x: str,
) -> str:
    """Adds projections, rotation and attention; returns the name of the heads' results.

    The output projection is not part of it.
    """
    names, prefix = architecture.layer, f"blk.{layer}"
    kv_size = geometry.kv_heads * geometry.head_dim
    sizes = (geometry.heads * geometry.head_dim, kv_size, kv_size)
    full_names = [f"{prefix}.{name}" for name in (names.query, names.key, names.value)]
    matrices: list[Matrix] = []
    biases: list[Floats | None] = []
    for name, size in zip(full_names, sizes, strict=True):
        matrices.append(weights.matrix(f"{name}.weight", size, geometry.hidden_size))
        biases.append(weights.bias(name, size, architecture.qkv_bias))
    if architecture.rope is RopeLayout.INTERLEAVED:
        for index, heads in ((0, geometry.heads), (1, geometry.kv_heads)):
            order = halves_order(heads, geometry.head_dim, geometry.rope_dim)
            matrices[index] = _take_rows(matrices[index], order)
            bias = biases[index]
            biases[index] = None if bias is None else bias[order]
    if can_stack(matrices) and not architecture.qk_norm:
        packed = f"{prefix}.attn_qkv"
        bias = stack_biases(biases, sizes)
        inputs = [graph.linear(x, stack_matrices(matrices), packed, bias), "", ""]
    else:
        inputs = [
            graph.linear(x, matrix, name, bias)
            for matrix, name, bias in zip(matrices, full_names, biases, strict=True)
        ]
    if architecture.qk_norm:
        for index, name in ((0, names.query_norm), (1, names.key_norm)):
            full = f"{prefix}.{name}"
            weight = weights.vector(f"{full}.weight", geometry.head_dim)
            inputs[index] = _head_norm(graph, inputs[index], full, weight, geometry)
    return _group_query_attention(graph, geometry, layer, inputs)


def _group_query_attention(
    graph: GraphBuilder, geometry: Geometry, layer: int, inputs: Sequence[str]
) -> str:
    window = geometry.sliding_window
    return graph.node(
        "GroupQueryAttention",
        [
            *inputs,
            f"past_key_values.{layer}.key",
            f"past_key_values.{layer}.value",
            "seqlens_k",
            "total_sequence_length",
            "cos_cache",
            "sin_cache",
        ],
        [f"blk.{layer}/attention", f"present.{layer}.key", f"present.{layer}.value"],
        MICROSOFT,
        num_heads=geometry.heads,
        kv_num_heads=geometry.kv_heads,
        scale=geometry.head_dim**-0.5,
        do_rotary=1,
        rotary_interleaved=0,
        local_window_size=-1 if window is None else window,
    )


def _head_norm(graph: GraphBuilder, x: str, name: str, weight: Floats, geometry: Geometry) -> str:
    """Normalises every head of queries or keys."""
    heads = graph.constant("split_heads", [0, 0, -1, geometry.head_dim])
    merged = graph.constant("merge_heads", [0, 0, -1])
    split = graph.node("Reshape", [x, heads], f"{name}/split")
    scale = graph.weight(f"{name}.weight", weight)
    normed = graph.norm(split, scale, f"{name}/normed", geometry.norm_epsilon)
    return graph.node("Reshape", [normed, merged], f"{name}/out")


def halves_order(heads: int, head_dim: int, rope_dim: int) -> NDArray[np.intp]:
    """Returns the row order that turns interleaved pairs into halves, head by head.

    Args:
        heads: in the projection.
        head_dim: rows of a head.
        rope_dim: rows of a head that are rotated; the others stay.
    """
    rotated = np.arange(rope_dim).reshape(-1, 2).T.reshape(-1)
    one = np.concatenate([rotated, np.arange(rope_dim, head_dim)])
    order: NDArray[np.intp] = np.arange(heads, dtype=np.intp)[:, None] * head_dim + one
    return order.reshape(-1)


def _take_rows(matrix: Matrix, order: NDArray[np.intp]) -> Matrix:
    return matrix.take_rows(order) if isinstance(matrix, Blocks) else matrix[order]
