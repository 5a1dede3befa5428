"""Cache ports whose number of tokens the graph fixes, made to take any number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tokenmill.backends.graph.cache import GraphCache
from tokenmill.core.errors import CorruptFile, InvalidPackage

_VERSION = 1
"""Part of the cache's key: raise it when the rewrite changes."""
_MAX_CACHED_BYTES = 16 * 2**20
_SYMBOL = "tokenmill.capacity"


def free_capacity(
    model_file: Path,
    graph: bytes | None,
    ports: Sequence[str],
    axis: int,
    cache_dir: Path | None = None,
) -> bytes:
    """Returns the model with a symbol for the caches' capacity.

    Whether other nodes depend on the number does not show in the ports: the caller compares
    results. Weights inside the file stay in the result.

    Args:
        model_file: the ONNX file.
        graph: what to change in place of its content.
        ports: names of the cache ports, inputs and outputs.
        axis: of their tokens.
        cache_dir: see `rewrite`.

    Raises:
        InvalidPackage: the file cannot be read.
        CorruptFile: it is not an ONNX model.
    """
    if graph is None:
        try:
            graph = model_file.read_bytes()
        except OSError as error:
            why = error.strerror or str(error)
            raise InvalidPackage(f"cannot read {model_file}", why=why) from None
    cache = None if cache_dir is None else GraphCache(cache_dir)
    named = f"capacity\0{_VERSION}\0{axis}\0{ports}\0".encode()
    key = hashlib.sha256(named + hashlib.sha256(graph).digest()).hexdigest()[:32]
    if cache is not None and (found := cache.load(key)) is not None:
        return found
    result = _free(graph, set(ports), axis, model_file)
    if cache is not None and len(result) <= _MAX_CACHED_BYTES:
        cache.store(key, result)
    return result


def _free(content: bytes, ports: set[str], axis: int, file: Path) -> bytes:
    import onnx

    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, which has no typed import
        raise CorruptFile(
            f"{file} is not an ONNX model", why=str(error), fix="Fetch or export it again"
        ) from None
    graph = model.graph
    for port in (*graph.input, *graph.output):
        if port.name in ports:
            port.type.tensor_type.shape.dim[axis].dim_param = _SYMBOL
    # What was inferred for tensors between them may hold the number.
    del graph.value_info[:]
    return bytes(model.SerializeToString())
