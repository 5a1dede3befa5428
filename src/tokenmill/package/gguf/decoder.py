"""Builds the ONNX graph of a pre-norm gated decoder from a GGUF file's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenmill.package.gguf.architectures import Architecture, Bias, RopeLayout
from tokenmill.package.gguf.blocks import Blocks, Floats
from tokenmill.package.gguf.external_data import ExternalData
from tokenmill.package.gguf.geometry import Geometry
from tokenmill.package.gguf.graph import (
    MICROSOFT,
    GraphBuilder,
    Matrix,
    can_stack,
    stack_matrices,
)
from tokenmill.package.gguf.weights import Weights

if TYPE_CHECKING:
    from onnx import ModelProto

_OPSET, _IR_VERSION = 21, 10
EMBEDDING, OUTPUT, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"


class DecoderBuilder:
    """Builds one graph, layer by layer, in the order of its data file.

    Args:
        architecture: the table's entry.
        geometry: the sizes.
        weights: the tensors.
        data: where the weights go.
        progress: called with the stage, the layers done and all layers.
    """

    def __init__(
        self,
        architecture: Architecture,
        geometry: Geometry,
        weights: Weights,
        data: ExternalData,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._architecture, self._geometry, self._weights = architecture, geometry, weights
        self._graph = GraphBuilder(data)
        self._progress = progress
        self._names = architecture.layer
        self.vocab_size = weights.rows(EMBEDDING)

    def build(self) -> ModelProto:
        """Writes all weights and returns the graph that refers to them."""
        geometry, graph, weights = self._geometry, self._graph, self._weights
        self._positions()
        hidden = self._embedding()
        residual = hidden
        for layer in range(geometry.layers):
            self._progress("weights", layer, geometry.layers)
            hidden, residual = self._layer(layer, hidden, residual)
        norm = graph.weight(OUTPUT_NORM, weights.vector(OUTPUT_NORM, geometry.hidden_size))
        final, _ = self._add_and_norm(hidden, residual, norm, "output_norm")
        self._head(final)
        self._progress("weights", geometry.layers, geometry.layers)
        weights.check_all_read()
        return self._model()

    def _positions(self) -> None:
        geometry, graph = self._geometry, self._graph
        factors = None
        if ROPE_FACTORS in self._weights:
            factors = self._weights.vector(ROPE_FACTORS, geometry.rope_dim // 2)
        cosines, sines = geometry.rotation(factors)
        graph.weight("cos_cache", cosines)
        graph.weight("sin_cache", sines)
        axis, one = graph.constant("axis_1", [1]), graph.constant("one", [1])
        graph.node("ReduceSum", ["attention_mask", axis], "attended", keepdims=0)
        graph.node("Sub", ["attended", one], "attended_minus_one")
        graph.node("Cast", ["attended_minus_one"], "seqlens_k", to=6)
        graph.node("Shape", ["attention_mask"], "mask_shape", start=1, end=2)
        graph.node("Squeeze", ["mask_shape"], "mask_length")
        graph.node("Cast", ["mask_length"], "total_sequence_length", to=6)

    def _embedding(self) -> str:
        matrix = self._weights.matrix(EMBEDDING, self.vocab_size, self._geometry.hidden_size)
        self._embedding_matrix = matrix
        return self._rows(matrix, "embedding")

    def _rows(self, matrix: Matrix, out: str) -> str:
        """Adds the look-up of `input_ids` in the rows of the embedding."""
        graph = self._graph
        if not isinstance(matrix, Blocks):
            graph.weight(EMBEDDING, matrix)
            return graph.node("Gather", [EMBEDDING, "input_ids"], out, axis=0)
        rows, columns = matrix.quants.shape
        packed = matrix.packed()
        quants = graph.weight(EMBEDDING, packed.reshape(rows, -1))
        scales = graph.weight("token_embd.scales", matrix.scales)
        main = out if matrix.rest is None else f"{out}/main"
        graph.node(
            "GatherBlockQuantized",
            [quants, "input_ids", scales],
            main,
            MICROSOFT,
            bits=matrix.bits,
            block_size=matrix.block_size,
            gather_axis=0,
            quantize_axis=1,
        )
        if matrix.rest is None:
            return out
        rest = graph.weight("token_embd.rest", matrix.rest[..., None])
        blocks = graph.constant("embedding_blocks", [0, 0, -1, matrix.block_size])
        whole = graph.constant("embedding_columns", [0, 0, columns])
        graph.node("Gather", [rest, "input_ids"], f"{out}/rest", axis=0)
        graph.node("Reshape", [main, blocks], f"{out}/blocks")
        graph.node("Add", [f"{out}/blocks", f"{out}/rest"], f"{out}/sum")
        return graph.node("Reshape", [f"{out}/sum", whole], out)

    def _layer(self, layer: int, hidden: str, residual: str) -> tuple[str, str]:
        """Adds a layer. The layer before it left `hidden` to be added to `residual`."""
        geometry, graph, weights = self._geometry, self._graph, self._weights
        prefix, names, size = f"blk.{layer}", self._names, geometry.hidden_size
        norm = graph.weight(
            f"{prefix}.{names.attention_norm}.weight",
            weights.vector(f"{prefix}.{names.attention_norm}.weight", size),
        )
        if layer == 0:
            normed = graph.norm(hidden, norm, f"{prefix}/attn_norm", geometry.norm_epsilon)
        else:
            normed, residual = self._add_and_norm(hidden, residual, norm, f"{prefix}/attn_norm")
        attended = self._attention(layer, normed)
        width = geometry.heads * geometry.head_dim
        projected = self._linear(
            attended, prefix, [(names.output, size)], width, self._architecture.output_bias
        )
        norm = graph.weight(
            f"{prefix}.{names.ffn_norm}.weight",
            weights.vector(f"{prefix}.{names.ffn_norm}.weight", size),
        )
        normed, residual = self._add_and_norm(projected, residual, norm, f"{prefix}/ffn_norm")
        return self._ffn(prefix, normed), residual

    def _add_and_norm(self, hidden: str, residual: str, weight: str, out: str) -> tuple[str, str]:
        """Adds the residual connection and the norm after it; returns both results."""
        total = f"{out}/residual"
        self._graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, hidden, weight],
            [out, "", "", total],
            MICROSOFT,
            epsilon=self._geometry.norm_epsilon,
        )
        return out, total

    def _attention(self, layer: int, x: str) -> str:
        geometry, graph, names = self._geometry, self._graph, self._names
        prefix = f"blk.{layer}"
        query_size = geometry.heads * geometry.head_dim
        kv_size = geometry.kv_heads * geometry.head_dim
        sizes = [(names.query, query_size), (names.key, kv_size), (names.value, kv_size)]
        matrices = [self._matrix(f"{prefix}.{n}", rows, geometry.hidden_size) for n, rows in sizes]
        biases = [
            self._bias(f"{prefix}.{n}", rows, self._architecture.qkv_bias) for n, rows in sizes
        ]
        if self._architecture.rope is RopeLayout.INTERLEAVED:
            for index, heads in ((0, geometry.heads), (1, geometry.kv_heads)):
                order = halves_order(heads, geometry.head_dim, geometry.rope_dim)
                matrices[index] = _take_rows(matrices[index], order)
                bias = biases[index]
                biases[index] = None if bias is None else bias[order]
        if can_stack(matrices) and not self._architecture.qk_norm:
            bias = _stack_biases(biases, [rows for _, rows in sizes])
            packed = graph.linear(x, stack_matrices(matrices), f"{prefix}.attn_qkv", bias)
            inputs = [packed, "", ""]
        else:
            inputs = [
                graph.linear(x, matrix, f"{prefix}.{name}", bias)
                for (name, _), matrix, bias in zip(sizes, matrices, biases, strict=True)
            ]
        if self._architecture.qk_norm:
            for index, name in ((0, names.query_norm), (1, names.key_norm)):
                inputs[index] = self._head_norm(f"{prefix}.{name}", inputs[index])
        out = f"{prefix}/attention"
        attributes = (
            {}
            if geometry.sliding_window is None
            else {"local_window_size": geometry.sliding_window}
        )
        graph.node(
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
            [out, f"present.{layer}.key", f"present.{layer}.value"],
            MICROSOFT,
            num_heads=geometry.heads,
            kv_num_heads=geometry.kv_heads,
            scale=geometry.head_dim**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
            **attributes,
        )
        return out

    def _head_norm(self, name: str, x: str) -> str:
        """Normalises every head of queries or keys."""
        geometry, graph = self._geometry, self._graph
        heads = graph.constant("split_heads", [0, 0, -1, geometry.head_dim])
        merged = graph.constant("merge_heads", [0, 0, -1])
        weight = graph.weight(
            f"{name}.weight", self._weights.vector(f"{name}.weight", geometry.head_dim)
        )
        split = graph.node("Reshape", [x, heads], f"{name}/split")
        normed = graph.norm(split, weight, f"{name}/normed", geometry.norm_epsilon)
        return graph.node("Reshape", [normed, merged], f"{name}/out")

    def _ffn(self, prefix: str, x: str) -> str:
        geometry, graph, names = self._geometry, self._graph, self._names
        bias = self._architecture.ffn_bias
        gate_name, up_name = f"{prefix}.{names.gate}", f"{prefix}.{names.up}"
        size, width = geometry.ffn_size, geometry.hidden_size
        parts = [self._matrix(name, size, width) for name in (gate_name, up_name)]
        biases = [self._bias(name, size, bias) for name in (gate_name, up_name)]
        if can_stack(parts):
            both = graph.linear(
                x,
                stack_matrices(parts),
                f"{prefix}.ffn_gate_up",
                _stack_biases(biases, [size, size]),
            )
            gate, up = f"{prefix}/gate", f"{prefix}/up"
            graph.node("Split", [both], [gate, up], axis=-1, num_outputs=2)
        else:
            gate, up = (
                graph.linear(x, matrix, name, part_bias)
                for matrix, name, part_bias in zip(parts, (gate_name, up_name), biases, strict=True)
            )
        graph.node("Sigmoid", [gate], f"{prefix}/sigmoid")
        graph.node("Mul", [gate, f"{prefix}/sigmoid"], f"{prefix}/silu")
        graph.node("Mul", [f"{prefix}/silu", up], f"{prefix}/gated")
        return self._linear(f"{prefix}/gated", prefix, [(names.down, width)], size, bias)

    def _linear(
        self, x: str, prefix: str, parts: Sequence[tuple[str, int]], columns: int, bias: Bias
    ) -> str:
        ((name, rows),) = parts
        full = f"{prefix}.{name}"
        return self._graph.linear(
            x, self._matrix(full, rows, columns), full, self._bias(full, rows, bias)
        )

    def _matrix(self, name: str, rows: int, columns: int) -> Matrix:
        return self._weights.matrix(f"{name}.weight", rows, columns)

    def _bias(self, name: str, size: int, rule: Bias) -> Floats | None:
        present = f"{name}.bias" in self._weights
        if rule is Bias.REQUIRED or (rule is Bias.OPTIONAL and present):
            return self._weights.vector(f"{name}.bias", size)
        return None

    def _head(self, x: str) -> None:
        graph = self._graph
        final = "logits"
        if OUTPUT in self._weights:
            matrix = self._weights.matrix(OUTPUT, self.vocab_size, self._geometry.hidden_size)
            if isinstance(matrix, Blocks):
                graph.quantised_product(x, matrix, "output", final)
            else:
                graph.node("MatMul", [x, graph.weight(OUTPUT, matrix.T)], final)
        else:
            self._tied_head(x, final)

    def _tied_head(self, x: str, final: str) -> None:
        """The head over the embedding's own bytes."""
        graph, matrix = self._graph, self._embedding_matrix
        rows, columns = self.vocab_size, self._geometry.hidden_size
        if isinstance(matrix, Blocks):
            blocks = columns // matrix.block_size
            quants = graph.alias(
                EMBEDDING, OUTPUT, [rows, blocks, columns * matrix.bits // 8 // blocks]
            )
            main = final if matrix.rest is None else "output/main"
            graph.product_of(x, quants, "token_embd.scales", matrix, main)
            if matrix.rest is not None:
                graph.correction(x, matrix, "output", main, final)
        else:
            graph.node("Transpose", [EMBEDDING], "output/transposed", perm=[1, 0])
            graph.node("MatMul", [x, "output/transposed"], final)

    def _model(self) -> ModelProto:
        from onnx import TensorProto, helper

        geometry = self._geometry
        int64, float32 = TensorProto.INT64, TensorProto.FLOAT
        heads, dim = geometry.kv_heads, geometry.head_dim
        past = ["batch_size", heads, "past_sequence_length", dim]
        present = ["batch_size", heads, "total_sequence_length", dim]
        info = helper.make_tensor_value_info
        inputs = [
            info("input_ids", int64, ["batch_size", "sequence_length"]),
            info("attention_mask", int64, ["batch_size", "total_sequence_length"]),
        ]
        outputs = [info("logits", float32, ["batch_size", "sequence_length", self.vocab_size])]
        for layer in range(geometry.layers):
            for part in ("key", "value"):
                inputs.append(info(f"past_key_values.{layer}.{part}", float32, past))
                outputs.append(info(f"present.{layer}.{part}", float32, present))
        graph = helper.make_graph(
            self._graph.nodes, "decoder", inputs, outputs, self._graph.initializers
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)],
            ir_version=_IR_VERSION,
            producer_name="tokenmill",
        )


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


def _stack_biases(biases: Sequence[Floats | None], sizes: Sequence[int]) -> Floats | None:
    if all(bias is None for bias in biases):
        return None
    return np.concatenate(
        [
            np.zeros(size, np.float32) if bias is None else bias
            for bias, size in zip(biases, sizes, strict=True)
        ]
    )
