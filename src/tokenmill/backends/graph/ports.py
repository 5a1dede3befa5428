"""The ports that rewrites touch, and those that they add."""

from __future__ import annotations

from dataclasses import dataclass

POSITIONS_INPUT = "tokenmill.logits_positions"
"""int64 [k]: which rows of the flattened [batch x sequence] hidden states reach the head."""
LENGTHS_INPUT = "tokenmill.seqlens_k"
"""int32 [batch]: each row's length with its new tokens, less one."""
TOTAL_INPUT = "tokenmill.total_sequence_length"
"""int32 scalar: the longest row's length with its new tokens."""


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """The names of the ports that the rewrites touch; None where the graph has no such port."""

    logits: str
    attention_mask: str | None
