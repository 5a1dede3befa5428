"""Page blocks: how their arrays look, and whether a block continues a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.ids import Fingerprint
from tokenmill.core.pages import LayerPages, PageBlock

HEADS_TOKENS_DIM = "HTD"
"""Heads, tokens, head dimension."""
FOLDED = "1TC"
"""One, tokens, all heads' dimensions side by side."""


class PageGeometry(NamedTuple):
    """One array of a block: [heads, tokens, dim] of `dtype`; see `LayerPages` for the others."""

    kind: str
    layer: int
    layout: str
    heads: int
    dim: int
    dtype: np.dtype[Any]


def make_block(
    geometry: Sequence[PageGeometry],
    arrays: Iterable[NDArray[Any]],
    start: int,
    stop: int,
    fingerprint: Fingerprint,
) -> PageBlock:
    """Returns the block around arrays that are copies already."""
    layers = [
        LayerPages(like.kind, like.layer, like.layout, array)
        for like, array in zip(geometry, arrays, strict=True)
    ]
    return PageBlock(start, stop, layers, fingerprint)


def check_block(
    geometry: Sequence[PageGeometry],
    block: PageBlock,
    length: int,
    max_context: int,
    fingerprint: Fingerprint,
) -> None:
    """Raises `InvalidRequest` where the block does not continue a sequence of `length` tokens."""
    fault = _fault(geometry, block, length, max_context, fingerprint)
    if fault:
        raise InvalidRequest("the page block does not continue this sequence", why=fault)


def _fault(
    geometry: Sequence[PageGeometry],
    block: PageBlock,
    length: int,
    max_context: int,
    fingerprint: Fingerprint,
) -> str:
    if block.fingerprint != fingerprint:
        return "another model, backend or setting made it"
    if block.start != length or block.stop < block.start:
        return f"it holds tokens {block.start} to {block.stop}, and the sequence has {length}"
    if block.stop > max_context:
        return f"it ends at {block.stop}, and the context holds {max_context}"
    if len(block.layers) != len(geometry):
        return f"it has {len(block.layers)} arrays where {len(geometry)} are expected"
    for pages, like in zip(block.layers, geometry, strict=True):
        shape = like.heads, block.stop - block.start, like.dim
        expected = like.kind, like.layer, like.layout, shape, like.dtype
        found = pages.kind, pages.layer, pages.layout, pages.array.shape, pages.array.dtype
        if found != expected:
            return f"it has {found} where {expected} is expected"
    return ""
