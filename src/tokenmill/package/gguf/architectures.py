"""The model architectures that can be imported, as a table of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tokenmill.core.errors import UnsupportedModel


class RopeLayout(Enum):
    """How the rows of a file's query and key projections pair up under rotation."""

    INTERLEAVED = "interleaved"
    """Rows 2i and 2i+1 of a head; the importer reorders them to halves."""
    HALVES = "halves"
    """Rows i and i + n/2 of a head, as `GroupQueryAttention` rotates by default."""


class Bias(Enum):
    """Whether a projection has a bias tensor."""

    NEVER = "never"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Tensor names within `blk.N.`, without their `.weight` or `.bias`."""

    attention_norm: str = "attn_norm"
    query: str = "attn_q"
    key: str = "attn_k"
    value: str = "attn_v"
    query_norm: str = "attn_q_norm"
    key_norm: str = "attn_k_norm"
    output: str = "attn_output"
    ffn_norm: str = "ffn_norm"
    gate: str = "ffn_gate"
    up: str = "ffn_up"
    down: str = "ffn_down"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What distinguishes one architecture of pre-norm gated decoders from another.

    Attributes:
        name: the value of `general.architecture`, and the prefix of its metadata keys.
        genai_type: what onnxruntime-genai calls the type of such a model.
        rope: the row order of queries and keys.
        qkv_bias, output_bias, ffn_bias: which projections have biases.
        qk_norm: queries and keys are normalised per head before rotation.
        layer: tensor names of a layer.
        neutral: metadata keys (without the prefix) to the value at which they change nothing;
            any other value asks for something that this table cannot express.
    """

    name: str
    genai_type: str
    rope: RopeLayout
    qkv_bias: Bias = Bias.NEVER
    output_bias: Bias = Bias.NEVER
    ffn_bias: Bias = Bias.NEVER
    qk_norm: bool = False
    layer: LayerNames = LayerNames()
    neutral: Mapping[str, float] = field(default_factory=dict)


_NEUTRAL = {
    "expert_count": 0,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.logit_softcapping": 0,
    "attn_logit_softcapping": 0,
    "final_logit_softcapping": 0,
    "logit_scale": 1,
    "residual_scale": 1,
    "embedding_scale": 1,
}

ARCHITECTURES = {
    entry.name: entry
    for entry in (
        Architecture(
            "llama",
            "llama",
            RopeLayout.INTERLEAVED,
            qkv_bias=Bias.OPTIONAL,
            output_bias=Bias.OPTIONAL,
            ffn_bias=Bias.OPTIONAL,
            neutral=_NEUTRAL,
        ),
        Architecture(
            "qwen2",
            "qwen2",
            RopeLayout.HALVES,
            qkv_bias=Bias.REQUIRED,
            output_bias=Bias.OPTIONAL,
            neutral=_NEUTRAL,
        ),
        Architecture("qwen3", "qwen3", RopeLayout.HALVES, qk_norm=True, neutral=_NEUTRAL),
    )
}
"""`general.architecture` to its entry."""


def find_architecture(name: str) -> Architecture:
    """Returns the entry of that name.

    Raises:
        UnsupportedModel: there is none.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise UnsupportedModel(
        f"the GGUF architecture {name!r} is not supported",
        why=f"supported are {', '.join(sorted(ARCHITECTURES))}",
        fix="Use a model of a supported architecture, or an ONNX export of this one",
    )
