"""Writes tensors one after another into the data file beside an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import TensorProto

# Runtimes map a tensor into memory where its offset allows it: a page on Linux, the allocation
# granularity of 64 KiB on Windows. Small tensors are read, so they need no padding.
_MAPPED_ALIGNMENT, _MAPPED_BYTES = 65536, 1 << 20
_PAGE_ALIGNMENT, _PAGE_BYTES = 4096, 4096
_SMALL_ALIGNMENT = 64


class ExternalData:
    """An external data file being written; holds no tensor in memory.

    Args:
        file: open for writing, empty.
        location: its name, relative to the graph.
    """

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file, self._location, self._position = file, location, 0

    def add(self, name: str, array: NDArray[Any]) -> TensorProto:
        """Appends an array and returns the initializer that refers to it."""
        array = np.ascontiguousarray(array)
        if array.nbytes >= _MAPPED_BYTES:
            alignment = _MAPPED_ALIGNMENT
        else:
            alignment = _PAGE_ALIGNMENT if array.nbytes >= _PAGE_BYTES else _SMALL_ALIGNMENT
        padding = -self._position % alignment
        self._file.write(b"\0" * padding)
        offset = self._position + padding
        self._file.write(array.data)
        self._position = offset + array.nbytes
        return self._describe(name, array, array.shape, offset)

    def alias(self, tensor: TensorProto, name: str, shape: Sequence[int]) -> TensorProto:
        """Returns another initializer over the same bytes, in another shape."""
        from onnx import TensorProto

        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = name
        copy.dims[:] = shape
        return copy

    def _describe(
        self, name: str, array: NDArray[Any], shape: Sequence[int], offset: int
    ) -> TensorProto:
        from onnx import TensorProto, helper

        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=shape,
            data_location=TensorProto.EXTERNAL,
        )
        entries = {"location": self._location, "offset": offset, "length": array.nbytes}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor
