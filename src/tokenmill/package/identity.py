"""What a file or a graph is, by content: the names under which state and imports are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tokenmill.core.errors import CorruptFile, InvalidPackage
from tokenmill.core.ids import Fingerprint
from tokenmill.package.external_data import external_path
from tokenmill.package.onnx_file import OnnxFile

IDENTITY_LENGTH = 12
"""So many digits of a content's identity stand in the name of what was made of it."""

_SAMPLE = 4096
_WHOLE = 4 << 20
_SAMPLES = 4096


def content_identity(path: Path) -> str:
    """Returns a key of a file's content, in hexadecimal, in a time that its size does not govern.

    The first and the last 4 MiB count, where formats keep their metadata, and 4,096 pieces of
    4 KiB spread evenly between them: a model whose weights were changed in some layers only must
    not pass for the model that it was. Name and times do not count.

    Raises:
        InvalidPackage: it cannot be read.
    """
    try:
        size = path.stat().st_size
        middle = max(0, size - 2 * _WHOLE)
        step = max(_SAMPLE, middle // _SAMPLES)
        spans = [
            (0, min(size, _WHOLE)),
            *((_WHOLE + at, min(_SAMPLE, middle - at)) for at in range(0, middle, step)),
            (max(0, size - _WHOLE), min(size, _WHOLE)),
        ]
        digest = hashlib.sha256(f"tokenmill file 1\n{size}\n".encode())
        _update(digest, path, spans)
    except OSError as error:
        raise InvalidPackage(f"cannot read {path}", why=error.strerror or str(error)) from None
    return digest.hexdigest()


def fingerprint_of(graph: OnnxFile, documents: Iterable[Path]) -> Fingerprint:
    """Returns the identity of a graph with its weights and the documents that steer it.

    The graph and the documents count with every byte, but each weight tensor of more than 8 KiB
    only with its size, its first and its last 4 KiB: so a change to any layer shows, while
    gigabytes need not be read. Times and paths do not count.
    """
    digest = hashlib.sha256(b"tokenmill package 1\n")
    for document in sorted(documents):
        content = document.read_bytes()
        digest.update(f"{document.name} {len(content)}\n".encode())
        digest.update(content)
    spans: dict[str | None, list[tuple[int, int]]] = {None: []}
    for tensor in graph.initializers:
        if (tensor.offset >= 0 and tensor.nbytes > 2 * _SAMPLE) or tensor.location is not None:
            spans.setdefault(tensor.location, []).append((tensor.offset, tensor.nbytes))
    _update(digest, graph.path, _around(sorted(spans.pop(None)), graph.file_size))
    for location, parts in spans.items():
        digest.update(f"\n{location} {len(parts)}\n".encode())
        _update(digest, external_path(graph, location or ""), _ends(sorted(parts)))
    return Fingerprint(f"sha256:{digest.hexdigest()}")


def _ends(spans: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yields the head and the tail of each span, or all of it where it is short."""
    for offset, length in spans:
        if length <= 2 * _SAMPLE:
            yield offset, length
        else:
            yield offset, _SAMPLE
            yield offset + length - _SAMPLE, _SAMPLE


def _around(spans: list[tuple[int, int]], size: int) -> Iterable[tuple[int, int]]:
    """Yields everything but the middles of the spans."""
    position = 0
    for offset, length in spans:
        stop = offset + _SAMPLE
        if stop > position:
            yield position, stop - position
        position = max(position, offset + length - _SAMPLE)
    yield position, size - position


def _update(digest: hashlib._Hash, path: Path, spans: Iterable[tuple[int, int]]) -> None:
    with path.open("rb") as file:
        for offset, length in spans:
            file.seek(offset)
            content = file.read(length)
            if len(content) != length:
                raise CorruptFile(f"{path} became shorter while it was read")
            digest.update(length.to_bytes(8, "little"))
            digest.update(content)
