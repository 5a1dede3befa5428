"""Reads the header of a GGUF file and the raw bytes of its tensors, trusting no size in it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import CorruptFile, ModelNotFound, UnsupportedModel

Value = bool | int | float | str | list["Value"]
"""A metadata value."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
# The shortest possible entry: a key of one byte and a value of one byte; a name of one byte,
# no dimension, type and offset.
_MIN_ENTRY_BYTES, _MIN_TENSOR_BYTES = 14, 25
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4


class TensorInfo(NamedTuple):
    """Where a tensor lies in the file.

    Attributes:
        name: as in the file.
        shape: outermost first, e.g. (out, in) of a linear layer (GGUF writes it reversed).
        kind: ggml's name of the type, e.g. "Q4_K" or "F32".
        offset: of its first byte, from the start of the file.
        nbytes: its size in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file whose header was read and checked.

    Attributes:
        path: of the file.
        metadata: key to value.
        tensors: name to place.
    """

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]

    def read(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """Returns the tensor's bytes, uint8 [rows, bytes per row]; one row for a vector.

        Raises:
            CorruptFile: the file has become shorter since its header was read.
        """
        # Plain reads: a memory map past the end of a file that shrinks kills the process.
        with self.path.open("rb") as file:
            file.seek(tensor.offset)
            data = np.fromfile(file, dtype=np.uint8, count=tensor.nbytes)
        if data.size != tensor.nbytes:
            raise _truncated(
                self.path, tensor.name, tensor.offset + tensor.nbytes, tensor.offset + data.size
            )
        rows = math.prod(tensor.shape[:-1])
        return data.reshape(rows, -1)


def _truncated(path: Path, what: str, needed: int, actual: int) -> CorruptFile:
    return CorruptFile(
        f"{path.name} is truncated at {what}",
        why=f"{needed} bytes are needed and the file has {actual}",
        fix="Fetch the file again",
    )


def _damaged(path: Path, why: str) -> CorruptFile:
    return CorruptFile(f"{path.name} is damaged", why=why, fix="Fetch the file again")


class _Cursor:
    """Reads the header forwards and never past the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.size, self.position = path, size, 0
        self._file = file

    def take(self, count: int, what: str) -> bytes:
        if self.position + count > self.size:
            raise _truncated(self.path, what, self.position + count, self.size)
        data = self._file.read(count)
        if len(data) != count:
            raise _truncated(self.path, what, self.position + count, self.position + len(data))
        self.position += count
        return data

    def number(self, code: str, what: str) -> int:
        (value,) = struct.unpack(code, self.take(struct.calcsize(code), what))
        return int(value)

    def count(self, each: int, what: str) -> int:
        """Reads a number of entries of at least `each` bytes."""
        value = self.number("<Q", what)
        if self.position + value * each > self.size:
            raise _truncated(self.path, what, self.position + value * each, self.size)
        return value

    def text(self, what: str) -> str:
        data = self.take(self.number("<Q", what), what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _damaged(self.path, f"{what} is not UTF-8 ({error.reason})") from error

    def value(self, kind: int, what: str, depth: int = 0) -> Value:
        if kind in _SCALARS:
            code = _SCALARS[kind]
            (value,) = struct.unpack(code, self.take(struct.calcsize(code), what))
            return float(value) if code in ("<f", "<d") else int(value)
        if kind == _BOOL:
            return self.take(1, what) != b"\0"
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY and depth < _MAX_NESTING:
            return self._array(what, depth)
        raise _damaged(self.path, f"{what} has the unknown value type {kind}")

    def _array(self, what: str, depth: int) -> list[Value]:
        kind = self.number("<I", what)
        if kind in _SCALARS:
            code = _SCALARS[kind]
            width = struct.calcsize(code)
            count = self.count(width, what)
            array = np.frombuffer(self.take(count * width, what), dtype=np.dtype(code))
            return list(array.tolist())
        count = self.count({_BOOL: 1, _STRING: 8, _ARRAY: 12}.get(kind, 1), what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]


def read_gguf(path: Path) -> GgufFile:
    """Reads and checks the header of a GGUF file.

    Raises:
        ModelNotFound: there is no such file.
        CorruptFile: not a GGUF file, truncated, or contradicting itself.
        UnsupportedModel: a version, byte order or tensor type that is not supported.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(_Cursor(path, file, size))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ModelNotFound(f"no file {path}", why=str(error.strerror)) from error


def _read(cursor: _Cursor) -> GgufFile:
    path = cursor.path
    magic = cursor.take(4, "the magic number")
    if magic != _MAGIC:
        raise CorruptFile(
            f"{path.name} is not a GGUF file",
            why=f"it begins with {magic!r} where GGUF begins with {_MAGIC!r}",
            fix="Give a .gguf file",
        )
    version = cursor.number("<I", "the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        big_endian = swapped in _VERSIONS
        raise UnsupportedModel(
            f"{path.name} has GGUF version {swapped if big_endian else version}"
            + (" in big-endian byte order" if big_endian else ""),
            why="versions 2 and 3 in little-endian byte order are supported",
            fix="Convert the file again with a current llama.cpp",
        )
    num_tensors = cursor.count(_MIN_TENSOR_BYTES, "the tensor count")
    num_entries = cursor.count(_MIN_ENTRY_BYTES, "the metadata count")
    metadata: dict[str, Value] = {}
    for _ in range(num_entries):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise _damaged(path, f"the metadata key {key!r} is there twice")
        metadata[key] = cursor.value(cursor.number("<I", key), key)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _damaged(path, f"general.alignment is {alignment!r}, not a power of two")
    relative = [_read_tensor(cursor) for _ in range(num_tensors)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in relative:
        if info.name in tensors:
            raise _damaged(path, f"the tensor {info.name!r} is there twice")
        if info.offset % alignment:
            raise _damaged(path, f"the tensor {info.name!r} is not aligned to {alignment} bytes")
        tensors[info.name] = info._replace(offset=start + info.offset)
    if tensors:
        last = max(tensors.values(), key=lambda info: info.offset + info.nbytes)
        if last.offset + last.nbytes > cursor.size:
            raise _truncated(
                path, f"the tensor {last.name!r}", last.offset + last.nbytes, cursor.size
            )
    return GgufFile(path, metadata, tensors)


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    """Reads one entry of the tensor table; its offset is still relative to the data."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.text("a tensor name")
    what = f"the tensor {name!r}"
    rank = cursor.number("<I", what)
    if rank > _MAX_DIMENSIONS:
        raise _damaged(cursor.path, f"{what} has {rank} dimensions")
    shape = tuple(cursor.number("<Q", what) for _ in range(rank))[::-1] or (1,)
    number = cursor.number("<I", what)
    offset = cursor.number("<Q", what)
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"{what} of {cursor.path.name} has the unknown type {number}",
            why="this importer does not know that quantisation",
            fix="Convert the model to another quantisation, such as Q4_K_M or Q8_0",
        ) from error
    if 0 in shape or shape[-1] % block:
        raise _damaged(cursor.path, f"{what} has the shape {shape}, with blocks of {block}")
    return TensorInfo(name, shape, kind.name, offset, math.prod(shape) // block * block_bytes)
