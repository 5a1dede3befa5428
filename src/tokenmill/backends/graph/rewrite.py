"""A decoder's graph made cheaper to step: found in the cache, or rewritten and put there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokenmill.backends.graph.cache import GraphCache
from tokenmill.backends.graph.ports import DecoderPorts
from tokenmill.backends.graph.rewritten import Rewritten
from tokenmill.backends.graph.weight_reads import WeightRead, are_unchanged
from tokenmill.core.errors import InvalidPackage

__all__ = ["REWRITER_VERSION", "Probe", "Rewritten", "rewrite"]

REWRITER_VERSION = 6
"""Part of the cache's key and of state fingerprints: raise it when a rewrite changes."""

_MAX_CACHED_BYTES = 64 * 2**20


class Probe(NamedTuple):
    """Checks a rewritten graph that shares buffers against the file it was made from.

    Attributes:
        version: of the runtime that it asks; another version asks again.
        compare: takes the file, the rewritten graph and the ports; returns None where both
            compute the same logits, else the difference in one phrase.
    """

    version: str
    compare: Callable[[Path, bytes, DecoderPorts], str | None]


def rewrite(
    model_file: Path,
    ports: DecoderPorts,
    cache_dir: Path | None = None,
    probe: Probe | None = None,
) -> Rewritten:
    """Returns the model with every rewrite applied that recognises its pattern.

    A rewritten graph shows by its inputs what was done: `ports.POSITIONS_INPUT` where rows are cut
    before the head (the logits are [k, vocab] then), `ports.LENGTHS_INPUT` and
    `ports.TOTAL_INPUT` in place of the attention mask. Weights stay where they are, beside the
    file or in it: a rewritten graph names them by place, relative to the directory of
    `model_file`.

    Args:
        model_file: the ONNX file.
        ports: see `DecoderPorts`.
        cache_dir: where results are kept, so that the next start needs no graph library; None
            keeps nothing.
        probe: asked once, before a graph that shares buffers goes into the cache; where it
            finds a difference that rewrite is dropped. None trusts the recognition.

    Raises:
        InvalidPackage: the file cannot be read.
        CorruptFile: it is not an ONNX model.
    """
    try:
        content = model_file.read_bytes()
    except OSError as error:
        raise InvalidPackage(
            f"cannot read {model_file}", why=error.strerror or str(error)
        ) from None
    key = _key(content, model_file.name, ports, "" if probe is None else probe.version)
    cache = None if cache_dir is None else GraphCache(cache_dir)
    if cache is not None:
        # Models of one architecture may share a graph, and differ in the weights beside it.
        for found in map(_decode, cache.load_all(key)):
            if are_unchanged(model_file.parent, found.reads):
                return found
    result = _rewrite(content, ports, model_file, probe)
    if cache is not None and len(result.graph or b"") <= _MAX_CACHED_BYTES:
        cache.store(key, _encode(result))
    return result


def _rewrite(content: bytes, ports: DecoderPorts, file: Path, probe: Probe | None) -> Rewritten:
    from tokenmill.backends.graph.apply import apply_rewrites

    result = apply_rewrites(content, ports, file)
    if probe is None or not result.shares_buffers or result.graph is None:
        return result
    difference = probe.compare(file, result.graph, ports)
    if difference is None:
        return result
    kept = apply_rewrites(content, ports, file, share_buffers=False)
    notes = (f"attention stays plain: {difference}",)
    return kept._replace(notes=notes, reads=result.reads)


def _encode(result: Rewritten) -> bytes:
    """Returns a line of JSON with what is not in the graph, and the graph."""
    head = {
        "shares_buffers": result.shares_buffers,
        "notes": result.notes,
        "rows_depend": result.rows_depend,
        "reads": result.reads,
    }
    return json.dumps(head).encode() + b"\n" + (result.graph or b"")


def _decode(content: bytes) -> Rewritten:
    head, _, graph = content.partition(b"\n")
    values = json.loads(head)
    reads = tuple(WeightRead(*read) for read in values["reads"])
    return Rewritten(
        graph or None,
        values["shares_buffers"],
        tuple(values["notes"]),
        values["rows_depend"],
        reads,
    )


def _key(content: bytes, file_name: str, ports: DecoderPorts, probe: str) -> str:
    # The name too: weights inside the file are named by it in the result.
    names = f"{REWRITER_VERSION}\0{file_name}\0{ports!r}\0{probe}\0"
    return hashlib.sha256(names.encode() + hashlib.sha256(content).digest()).hexdigest()[:32]
