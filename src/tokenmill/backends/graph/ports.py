"""The ports that rewrites touch, and those that they add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

POSITIONS_INPUT = "tokenmill.logits_positions"
"""int64 [k]: which rows of the flattened [batch x sequence] hidden states reach the head."""
LENGTHS_INPUT = "tokenmill.seqlens_k"
"""int32 [batch]: each row's length with its new tokens, less one."""
TOTAL_INPUT = "tokenmill.total_sequence_length"
"""int32 scalar: the longest row's length with its new tokens."""


class StatePorts(NamedTuple):
    """The names of one layer's state ports, [batch, heads, tokens, dim], and its geometry."""

    past_key: str
    past_value: str
    present_key: str
    present_value: str
    num_kv_heads: int
    head_dim: int

    @property
    def past(self) -> tuple[str, str]:
        """Key and value."""
        return self.past_key, self.past_value

    @property
    def present(self) -> tuple[str, str]:
        """Key and value."""
        return self.present_key, self.present_value


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """The names of the ports that the rewrites touch; None where the graph has no such port.

    Attributes:
        state: of every layer, where present is past with the new tokens appended; empty where
            the state is kept in another way, which is then left as it is.
        in_place: the graph writes its state into buffers as it is, each row with its own length.
        context_length: most tokens that a sequence will have; masks are looked at up to it.
    """

    logits: str
    attention_mask: str | None
    input_ids: str = ""
    position_ids: str | None = None
    use_cache_branch: str | None = None
    state: tuple[StatePorts, ...] = ()
    in_place: bool = False
    context_length: int = 0
