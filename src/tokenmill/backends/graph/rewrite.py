"""A decoder's graph made cheaper to step: found in the cache, or rewritten and put there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tokenmill.backends.graph.cache import GraphCache
from tokenmill.backends.graph.ports import DecoderPorts
from tokenmill.core.errors import InvalidPackage

REWRITER_VERSION = 1
"""Part of the cache's key and of state fingerprints: raise it when a rewrite changes."""

_MAX_CACHED_BYTES = 16 * 2**20


def rewrite(model_file: Path, ports: DecoderPorts, cache_dir: Path | None = None) -> bytes | None:
    """Returns the model with every rewrite applied that recognises its pattern.

    A rewritten graph shows by its inputs what was done: `ports.POSITIONS_INPUT` where rows are cut
    before the head (the logits are [k, vocab] then), `ports.LENGTHS_INPUT` and
    `ports.TOTAL_INPUT` in place of the attention mask. External weights stay where they are;
    their locations are relative to the directory of `model_file`.

    Args:
        model_file: the ONNX file.
        ports: see `DecoderPorts`.
        cache_dir: where results are kept, so that the next start needs no graph library; None
            keeps nothing.

    Returns:
        The serialised model, or None where nothing applies and the file is to be used as it is.

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
    key = _key(content, ports)
    cache = None if cache_dir is None else GraphCache(cache_dir)
    if cache is not None and (found := cache.load(key)) is not None:
        return found or None
    from tokenmill.backends.graph.apply import apply_rewrites

    result = apply_rewrites(content, ports, model_file)
    if cache is not None and len(result or b"") <= _MAX_CACHED_BYTES:
        cache.store(key, result or b"")
    return result


def _key(content: bytes, ports: DecoderPorts) -> str:
    names = f"{REWRITER_VERSION}\0{ports.logits}\0{ports.attention_mask}\0"
    return hashlib.sha256(names.encode() + hashlib.sha256(content).digest()).hexdigest()[:32]
