"""Rows to page blocks and back."""

from __future__ import annotations

from tokenmill.backends.ort.slots import Slots
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.ids import Fingerprint
from tokenmill.core.pages import LayerPages, PageBlock

LAYOUT = "HTD"
"""Heads, tokens, head dimension."""


def export_block(
    slots: Slots, row: int, start: int, stop: int, fingerprint: Fingerprint
) -> PageBlock:
    """Returns a copy of a row's tokens `start` to `stop`."""
    layers = [
        LayerPages(kind, layer, LAYOUT, array)
        for kind, layer, array in slots.read(row, start, stop)
    ]
    return PageBlock(start, stop, layers, fingerprint)


def check_block(slots: Slots, block: PageBlock, length: int, fingerprint: Fingerprint) -> None:
    """Raises `InvalidRequest` where the block does not continue a sequence of `length` tokens."""
    fault = _fault(slots, block, length, fingerprint)
    if fault:
        raise InvalidRequest("the page block does not continue this sequence", why=fault)


def _fault(slots: Slots, block: PageBlock, length: int, fingerprint: Fingerprint) -> str:
    if block.fingerprint != fingerprint:
        return "another model, backend or setting made it"
    if block.start != length or block.stop < block.start:
        return f"it holds tokens {block.start} to {block.stop}, and the sequence has {length}"
    if block.stop > slots.max_context:
        return f"it ends at {block.stop}, and the context holds {slots.max_context}"
    if len(block.layers) != len(slots.buffers):
        return f"it has {len(block.layers)} arrays where {len(slots.buffers)} are expected"
    for pages, buffer in zip(block.layers, slots.buffers, strict=True):
        _, heads, _, dim = buffer.array.shape
        shape = heads, block.stop - block.start, dim
        expected = buffer.kind, buffer.layer, LAYOUT, shape, buffer.array.dtype
        found = pages.kind, pages.layer, pages.layout, pages.array.shape, pages.array.dtype
        if found != expected:
            return f"it has {found} where {expected} is expected"
    return ""
