"""The tensors of a GGUF file by name, in the precision that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import InvalidOption, InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.architectures import Bias
from tokenmill.package.gguf.blocks import (
    BLOCK_KINDS,
    Blocks,
    Floats,
    decode_blocks,
    quantise,
)
from tokenmill.package.gguf.reader import GgufFile, TensorInfo


class Precision(Enum):
    """How the weights are held."""

    KEEP = "keep"
    """As the file has them, block for block."""
    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Returns the precision of that name.

        Raises:
            InvalidOption: there is none.
        """
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(member.value for member in cls)
            raise InvalidOption(
                f"the precision {text!r} does not exist", fix=f"Use one of {names}"
            ) from None


class Held(NamedTuple):
    """How one kind of tensor of the file is held in the package, and how many there are."""

    tensors: int
    bits: int
    block_size: int | None
    exact: bool
    correction: bool


_OWN_BLOCK = 32
_FLOATS: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}


class Weights:
    """Reads tensors on demand, and remembers which were read.

    Args:
        file: with its header read.
        precision: of matrices; vectors are always float32.
    """

    def __init__(self, file: GgufFile, precision: Precision) -> None:
        self._file, self._precision = file, precision
        self._unread = set(file.tensors)
        self._held: dict[str, Held] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    @property
    def held(self) -> dict[str, Held]:
        """Kind of tensor in the file to how it is held, for the matrices read so far."""
        return dict(self._held)

    def describe(self) -> str:
        """Returns the precision in words, the most frequent kind first."""
        parts = []
        for kind, held in sorted(self._held.items(), key=lambda item: -item[1].tensors):
            if held.block_size is None:
                parts.append(f"{held.tensors} x float32 (from {kind})")
                continue
            source = f"exact {kind}" if held.exact else f"requantised from {kind}"
            parts.append(f"{held.tensors} x {held.bits}-bit blocks of {held.block_size} ({source})")
        return ", ".join(parts)

    def rows(self, name: str) -> int:
        """Returns the number of rows of a matrix, without reading it."""
        return self._find(name).shape[0]

    def check_all_read(self) -> None:
        """Raises InvalidPackage for a tensor that nothing asked for: the graph would lack it."""
        if self._unread:
            name = min(self._unread)
            others = f" and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
            raise InvalidPackage(
                f"the GGUF file has the unexpected tensor {name!r}{others}",
                why="the architecture's graph does not use it, so results would be wrong",
            )

    def vector(self, name: str, size: int) -> Floats:
        """Returns a tensor of `size` elements as float32 [size]."""
        info = self._checked(name, (size,))
        return self._floats(info).reshape(size)

    def bias(self, name: str, size: int, rule: Bias) -> Floats | None:
        """Returns the bias of a projection, where the rule and the file say that it has one."""
        if rule is Bias.NEVER or (rule is Bias.OPTIONAL and f"{name}.bias" not in self):
            return None
        return self.vector(f"{name}.bias", size)

    def matrix(
        self, name: str, rows: int, columns: int, *, is_vocabulary: bool = False
    ) -> Blocks | Floats:
        """Returns a matrix [rows, columns]: blocks, or float32 where it is held as such.

        Args:
            name: with its `.weight`.
            rows, columns: what the shape must be.
            is_vocabulary: an embedding or a head, which four bits of our own would hurt most.
        """
        info = self._checked(name, (rows, columns))
        kind = BLOCK_KINDS.get(info.kind)
        if self._precision is Precision.KEEP and kind is not None:
            self._count(info, kind.bits, kind.block_size, True, kind.correction)
            blocks = decode_blocks(info.kind, self._file.read(info))
            self._check_finite(info, blocks.scales)
            if blocks.rest is not None:
                self._check_finite(info, blocks.rest)
            return blocks
        if self._precision in (Precision.KEEP, Precision.FP32):
            floats = self._floats(info)
            self._count(info, 32, None, True, False)
            return floats
        bits = 4 if self._precision is Precision.INT4 and not is_vocabulary else 8
        if columns % _OWN_BLOCK:
            self._count(info, 32, None, True, False)
            return self._floats(info)
        self._count(info, bits, _OWN_BLOCK, False, False)
        return quantise(self._floats(info), bits, _OWN_BLOCK)

    def _find(self, name: str) -> TensorInfo:
        if name not in self._file.tensors:
            raise InvalidPackage(
                f"the GGUF file has no tensor {name!r}", why="its architecture needs it"
            )
        return self._file.tensors[name]

    def _checked(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._find(name)
        if info.shape != shape:
            raise InvalidPackage(
                f"the tensor {name!r} has the shape {info.shape}",
                why=f"the metadata ask for {shape}",
            )
        self._unread.discard(name)
        return info

    def _count(
        self, info: TensorInfo, bits: int, block_size: int | None, exact: bool, correction: bool
    ) -> None:
        before = self._held.get(info.kind)
        count = 1 if before is None else before.tensors + 1
        self._held[info.kind] = Held(count, bits, block_size, exact, correction)

    def _floats(self, info: TensorInfo) -> Floats:
        """Returns any tensor as float32, [rows, columns]."""
        raw = self._file.read(info)
        values: Floats
        if info.kind in _FLOATS:
            values = np.ascontiguousarray(raw).view(_FLOATS[info.kind]).astype(np.float32)
        elif info.kind == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        elif info.kind in BLOCK_KINDS:
            values = decode_blocks(info.kind, raw).dequantise()
        else:
            values = _dequantise_other(info, raw)
        self._check_finite(info, values)
        return values

    def _check_finite(self, info: TensorInfo, values: NDArray[np.float32]) -> None:
        if not np.isfinite(values).all():
            raise InvalidPackage(
                f"the tensor {info.name!r} has values that are not finite",
                why="the file is damaged, or the model was never sound",
            )


def _dequantise_other(info: TensorInfo, raw: NDArray[np.uint8]) -> Floats:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        values: Floats = dequantize(raw, GGMLQuantizationType[info.kind])
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"the tensor {info.name!r} has the type {info.kind}",
            why="there is no way to unpack it here",
            fix="Convert the model to another quantisation, such as Q4_K_M or Q8_0",
        ) from error
    return values
