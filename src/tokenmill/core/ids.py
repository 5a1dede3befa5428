"""Identifiers. Each is its own type, so that a token, a sequence and a request cannot be mixed."""

from __future__ import annotations

from typing import NewType

TokenId = NewType("TokenId", int)
"""An entry of the model's vocabulary, 0 <= id < vocab_size."""

SequenceId = NewType("SequenceId", int)
"""A sequence that a backend holds state for; unique within that backend, never reused."""

RequestId = NewType("RequestId", str)
"""A request, unique within a process; shown in traces and logs."""

AdapterId = NewType("AdapterId", str)
"""A parameter adapter (LoRA) that a request asks for."""

Fingerprint = NewType("Fingerprint", str)
"""What computed a piece of state: package, graph rewrites, backend, provider, KV dtype, layout.

State with one fingerprint is never used under another.
"""
