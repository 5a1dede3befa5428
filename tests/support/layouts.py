"""The ways to run a tiny decoder."""

from __future__ import annotations

from support.tiny_onnx import TinySpec
from support.tiny_plain import PlainSpec
from support.tiny_static import StaticSpec

Spec = TinySpec | PlainSpec

PLAIN = PlainSpec(vocab=96, context=256)
KINDS: dict[str, tuple[str, Spec]] = {
    "ort": ("ort", TinySpec()),
    "reference": ("reference", TinySpec()),
    "plain": ("plain", PLAIN),
    "plain, rewritten": ("ort", PLAIN),
    "static": ("ort", StaticSpec(capacity=None)),
    "static, fixed": ("ort", StaticSpec(capacity=256, folded=False)),
}
"""Name to backend and decoder; the backend "plain" runs plain state without a rewrite."""
