"""Weights inside a file are named by their place in it, so that a rewritten graph stays small."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto

from tokenmill.core.errors import TokenmillError
from tokenmill.package.onnx_file import read_onnx

_MIN_BYTES = 2**16
"""Smaller ones are copied: to follow a reference takes longer."""


def weights_by_place(model: ModelProto, file: Path, content: bytes) -> None:
    """Turns large weights into external ones whose data file is the model's own file.

    Args:
        model: made from `content`; changed in place.
        file: where the model was read from; the locations are relative to its directory.
        content: of `file`.
    """
    large = [
        tensor
        for tensor in model.graph.initializer
        if len(tensor.raw_data) >= _MIN_BYTES and tensor.data_location != TensorProto.EXTERNAL
    ]
    if not large:
        return
    try:
        header = read_onnx(file)
    except TokenmillError:  # the file was replaced meanwhile
        return
    places = {
        weight.name: weight.offset
        for weight in header.initializers
        if weight.location is None and weight.offset >= 0
    }
    for tensor in large:
        offset, size = places.get(tensor.name, -1), len(tensor.raw_data)
        # Names are unique only within one graph of the file.
        if offset < 0 or content[offset : offset + size] != tensor.raw_data:
            continue
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file.name), ("offset", offset), ("length", size)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
