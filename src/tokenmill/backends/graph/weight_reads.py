"""What a rewrite read of the weights beside a graph, so that other weights are noticed later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class WeightRead(NamedTuple):
    """Bytes of a data file that a rewrite depends on.

    Attributes:
        location: of the file, relative to the graph's directory.
        offset, length: where they are in it.
        digest: of the bytes, see `digest_of`.
    """

    location: str
    offset: int
    length: int
    digest: str


def digest_of(content: bytes) -> str:
    """Returns what tells contents apart."""
    return hashlib.sha256(content).hexdigest()


def are_unchanged(directory: Path, reads: Iterable[WeightRead]) -> bool:
    """Whether the same bytes are still there."""
    try:
        return all(_read(directory, read) == read.digest for read in reads)
    except OSError:
        return False


def _read(directory: Path, read: WeightRead) -> str:
    with (directory / read.location).open("rb") as file:
        file.seek(read.offset)
        return digest_of(file.read(read.length))
