"""The sizes and constants of a decoder, read from a GGUF file's metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.architectures import Architecture
from tokenmill.package.gguf.metadata import Metadata, missing

_MAX_CONTEXT = 1 << 24


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the graph is built from.

    Attributes:
        layers, hidden_size, ffn_size, heads, kv_heads, head_dim: as usual.
        rope_dim: how many of `head_dim` are rotated.
        rope_base: theta of the rotation.
        rope_factor: positions are divided by it (linear scaling); 1 is none.
        context_length: tokens.
        norm_epsilon: of every RMS norm.
        sliding_window: tokens that attention looks back at, None for all.
    """

    layers: int
    hidden_size: int
    ffn_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_base: float
    rope_factor: float
    context_length: int
    norm_epsilon: float
    sliding_window: int | None

    def rotation(
        self, factors: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the cosines and sines, float32 [context_length, rope_dim / 2] each.

        Args:
            factors: float32 [rope_dim / 2] that divide the frequencies (`rope_freqs.weight`).
        """
        exponents = np.arange(0, self.rope_dim, 2, dtype=np.float64) / self.rope_dim
        frequencies = self.rope_base**-exponents / self.rope_factor
        if factors is not None:
            frequencies = frequencies / factors
        angles = np.outer(np.arange(self.context_length, dtype=np.float64), frequencies)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def read_geometry(architecture: Architecture, metadata: Metadata) -> Geometry:
    """Reads the geometry.

    Raises:
        InvalidPackage: a key is missing or makes no sense.
        UnsupportedModel: the file asks for something that the graph cannot express.
    """
    prefix = architecture.name
    for key, neutral in architecture.neutral.items():
        value = metadata.get_float(f"{prefix}.{key}")
        if value is not None and value != neutral:
            raise UnsupportedModel(
                f"the GGUF key '{prefix}.{key}' is {value:g}", why="that feature is not supported"
            )
    heads = metadata.positive(f"{prefix}.attention.head_count")
    kv_heads = metadata.get_int(f"{prefix}.attention.head_count_kv") or heads
    hidden_size = metadata.positive(f"{prefix}.embedding_length")
    head_dim = metadata.get_int(f"{prefix}.attention.key_length") or hidden_size // heads
    value_dim = metadata.get_int(f"{prefix}.attention.value_length") or head_dim
    if value_dim != head_dim:
        raise UnsupportedModel(
            f"'{prefix}.attention.value_length' is {value_dim}",
            why=f"values must be as wide as keys ({head_dim})",
        )
    if kv_heads < 0 or heads % kv_heads:
        raise InvalidPackage(
            f"'{prefix}.attention.head_count_kv' is {kv_heads}",
            why=f"it does not divide the {heads} query heads",
        )
    rope_dim = metadata.get_int(f"{prefix}.rope.dimension_count") or head_dim
    if head_dim < 2 or head_dim % 2 or rope_dim < 2 or rope_dim % 2 or rope_dim > head_dim:
        raise InvalidPackage(
            f"'{prefix}.rope.dimension_count' is {rope_dim}",
            why=f"it must be even and at most the head dimension {head_dim}",
        )
    epsilon = metadata.get_float(f"{prefix}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise missing(f"{prefix}.attention.layer_norm_rms_epsilon")
    base = metadata.get_float(f"{prefix}.rope.freq_base")
    base = 10000.0 if base is None else base
    context_length = metadata.positive(f"{prefix}.context_length")
    if context_length > _MAX_CONTEXT or not (0 < base < math.inf and 0 <= epsilon < 1):
        raise InvalidPackage(
            f"the GGUF file's '{prefix}' constants make no sense",
            why=f"context {context_length}, rotary base {base:g}, norm epsilon {epsilon:g}",
        )
    return Geometry(
        layers=metadata.positive(f"{prefix}.block_count"),
        hidden_size=hidden_size,
        ffn_size=metadata.positive(f"{prefix}.feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_dim=rope_dim,
        rope_base=base,
        rope_factor=_linear_factor(prefix, metadata),
        context_length=context_length,
        norm_epsilon=epsilon,
        sliding_window=metadata.get_int(f"{prefix}.attention.sliding_window") or None,
    )


def _linear_factor(prefix: str, metadata: Metadata) -> float:
    kind = metadata.get_text(f"{prefix}.rope.scaling.type")
    # Older files say the factor without the type.
    factor = metadata.get_float(f"{prefix}.rope.scaling.factor")
    if factor is None:
        factor = metadata.get_float(f"{prefix}.rope.scale_linear")
    if kind in (None, "none", "linear"):
        return 1.0 if kind == "none" or not factor or factor <= 0 else factor
    raise UnsupportedModel(
        f"the rotary scaling {kind!r} is not supported",
        why=f"'{prefix}.rope.scaling.type' may be 'none' or 'linear', or the file has a "
        "tensor 'rope_freqs.weight'",
    )
