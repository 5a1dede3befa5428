"""What the rewrites made of a decoder."""

from __future__ import annotations

from typing import NamedTuple

from tokenmill.backends.graph.weight_reads import WeightRead


class Rewritten(NamedTuple):
    """What the rewrites made of a decoder.

    Attributes:
        graph: the serialised model; None where the file is to be used as it is.
        shares_buffers: a plain past and present became one buffer, written in place.
        notes: what was done to plain attention, or why it was left, a phrase each.
        rows_depend: what a row computes depends on the longest row of its call; seen where plain
            attention was looked at, and where the graph shares buffers as it is.
        reads: of the weights beside the file, on which all of this depends.
    """

    graph: bytes | None
    shares_buffers: bool
    notes: tuple[str, ...]
    rows_depend: bool = False
    reads: tuple[WeightRead, ...] = ()
