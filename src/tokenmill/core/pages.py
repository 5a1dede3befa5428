"""Pieces of sequence state outside a sequence: copies of pages, pinned pages, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NewType

from tokenmill.core.ids import Fingerprint
from tokenmill.core.rows import Array

PAGE_TOKENS = 16
"""Tokens in one page of attention state."""

PageHandle = NewType("PageHandle", int)
"""Pages that a backend keeps beyond their sequence (only where `limits.shares_pages`)."""


class LayerPages(NamedTuple):
    """One layer's part of a block.

    Attributes:
        kind: what the array holds: "key", "value", or "key_value" where both are one array.
        layer: the layer's index in the model.
        layout: the meaning of the axes, e.g. "HTD" for heads, tokens, head dimension.
        array: contiguous, in the backend's live dtype.
    """

    kind: str
    layer: int
    layout: str
    array: Array


class PageBlock(NamedTuple):
    """A copy of the attention state of tokens `start` to `stop` of a sequence, all layers."""

    start: int
    stop: int
    layers: Sequence[LayerPages]
    fingerprint: Fingerprint

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(layer.array.nbytes for layer in self.layers)


class StateBlock(NamedTuple):
    """A snapshot of the state that cannot be cut by position: recurrent, convolution, cross.

    Attributes:
        length: the sequence's length when it was taken.
        arrays: (port or state name, array) pairs.
        fingerprint: of the backend that took it.
    """

    length: int
    arrays: Sequence[tuple[str, Array]]
    fingerprint: Fingerprint
