"""Builds the ONNX graph of a pre-norm gated decoder from a GGUF file's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenmill.package.gguf.architectures import Architecture, Bias
from tokenmill.package.gguf.attention import add_attention
from tokenmill.package.gguf.embedding import EMBEDDING, add_embedding, add_head
from tokenmill.package.gguf.external_data import ExternalData
from tokenmill.package.gguf.geometry import Geometry
from tokenmill.package.gguf.graph import (
    MICROSOFT,
    GraphBuilder,
    can_stack,
    stack_biases,
    stack_matrices,
)
from tokenmill.package.gguf.weights import Weights

if TYPE_CHECKING:
    from onnx import ModelProto

_OPSET, _IR_VERSION = 21, 10
_OUTPUT_NORM = "output_norm.weight"
_ROPE_FACTORS = "rope_freqs.weight"


class DecoderBuilder:
    """Builds one graph, layer by layer, which is also the order of its data file.

    Args:
        architecture: the table's entry.
        geometry: the sizes.
        weights: the tensors.
        data: where the weights go.
        progress: called with "weights", the layers done and all layers.
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
        self._vocab_size = weights.rows(EMBEDDING)

    def build(self) -> ModelProto:
        """Writes all weights and returns the graph that refers to them.

        Raises:
            InvalidPackage: a tensor is missing, surplus, not finite or of the wrong shape.
            UnsupportedModel: a tensor's type cannot be unpacked.
        """
        geometry, graph, weights = self._geometry, self._graph, self._weights
        self._add_positions()
        embedding = add_embedding(graph, weights, self._vocab_size, geometry.hidden_size)
        hidden, residual = embedding.out, ""
        for layer in range(geometry.layers):
            self._progress("weights", layer, geometry.layers)
            hidden, residual = self._add_layer(layer, hidden, residual)
        final, _ = self._add_and_norm(hidden, residual, _OUTPUT_NORM, "output_norm")
        add_head(graph, weights, embedding, final, self._vocab_size, geometry.hidden_size)
        self._progress("weights", geometry.layers, geometry.layers)
        weights.check_all_read()
        return self._model()

    def _add_positions(self) -> None:
        """Adds what every layer's attention shares: lengths, and the rotation's tables."""
        geometry, graph = self._geometry, self._graph
        factors = None
        if _ROPE_FACTORS in self._weights:
            factors = self._weights.vector(_ROPE_FACTORS, geometry.rope_dim // 2)
        cosines, sines = geometry.rotation(factors)
        graph.weight("cos_cache", cosines)
        graph.weight("sin_cache", sines)
        last_axis, one = graph.constant("last_axis", [-1]), graph.constant("one", [1])
        int32 = _int32()
        graph.node("ReduceSum", ["attention_mask", last_axis], "attended", keepdims=0)
        graph.node("Sub", ["attended", one], "attended_minus_one")
        graph.node("Cast", ["attended_minus_one"], "seqlens_k", to=int32)
        graph.node("Shape", ["attention_mask"], "mask_shape", start=1, end=2)
        graph.node("Squeeze", ["mask_shape"], "mask_length")
        graph.node("Cast", ["mask_length"], "total_sequence_length", to=int32)

    def _add_layer(self, layer: int, hidden: str, residual: str) -> tuple[str, str]:
        """Adds a layer. The one before left `hidden` to be added to `residual`, if there is one.

        Returns:
            The same two names for the next layer.
        """
        geometry, names, prefix = self._geometry, self._architecture.layer, f"blk.{layer}"
        normed, residual = self._add_and_norm(
            hidden,
            residual,
            f"{prefix}.{names.attention_norm}.weight",
            f"{prefix}/{names.attention_norm}",
        )
        attended = add_attention(
            self._graph, self._weights, self._architecture, geometry, layer, normed
        )
        projected = self._linear(
            attended,
            f"{prefix}.{names.output}",
            geometry.hidden_size,
            geometry.heads * geometry.head_dim,
            self._architecture.output_bias,
        )
        normed, residual = self._add_and_norm(
            projected,
            residual,
            f"{prefix}.{names.ffn_norm}.weight",
            f"{prefix}/{names.ffn_norm}",
        )
        return self._add_ffn(prefix, normed), residual

    def _add_and_norm(self, hidden: str, residual: str, weight: str, out: str) -> tuple[str, str]:
        """Adds the residual connection and the norm after it; returns both results."""
        graph, epsilon = self._graph, self._geometry.norm_epsilon
        scale = graph.weight(weight, self._weights.vector(weight, self._geometry.hidden_size))
        if not residual:
            return graph.norm(hidden, scale, out, epsilon), hidden
        total = f"{out}/residual"
        graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, hidden, scale],
            [out, "", "", total],
            MICROSOFT,
            epsilon=epsilon,
        )
        return out, total

    def _add_ffn(self, prefix: str, x: str) -> str:
        """Adds down(silu(gate(x)) * up(x))."""
        geometry, graph, names = self._geometry, self._graph, self._architecture.layer
        rule = self._architecture.ffn_bias
        size, width = geometry.ffn_size, geometry.hidden_size
        full_names = [f"{prefix}.{names.gate}", f"{prefix}.{names.up}"]
        matrices = [self._weights.matrix(f"{name}.weight", size, width) for name in full_names]
        biases = [self._weights.bias(name, size, rule) for name in full_names]
        if can_stack(matrices):
            bias = stack_biases(biases, [size, size])
            both = graph.linear(x, stack_matrices(matrices), f"{prefix}.ffn_gate_up", bias)
            gate, up = f"{prefix}/gate", f"{prefix}/up"
            graph.node("Split", [both], [gate, up], axis=-1, num_outputs=2)
        else:
            gate, up = (
                graph.linear(x, matrix, name, bias)
                for matrix, name, bias in zip(matrices, full_names, biases, strict=True)
            )
        graph.node("Sigmoid", [gate], f"{prefix}/sigmoid")
        graph.node("Mul", [gate, f"{prefix}/sigmoid"], f"{prefix}/silu")
        gated = graph.node("Mul", [f"{prefix}/silu", up], f"{prefix}/gated")
        return self._linear(gated, f"{prefix}.{names.down}", width, size, rule)

    def _linear(self, x: str, name: str, rows: int, columns: int, rule: Bias) -> str:
        matrix = self._weights.matrix(f"{name}.weight", rows, columns)
        return self._graph.linear(x, matrix, name, self._weights.bias(name, rows, rule))

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
        outputs = [info("logits", float32, ["batch_size", "sequence_length", self._vocab_size])]
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


def _int32() -> int:
    from onnx import TensorProto

    return int(TensorProto.INT32)
