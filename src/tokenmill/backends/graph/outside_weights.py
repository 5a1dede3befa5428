"""Weights that lie in files beside a graph, read where a rewrite looks at their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from tokenmill.backends.graph.weight_reads import WeightRead, digest_of


class OutsideWeights:
    """Reads weights, and keeps account of what was read: a result depends on it.

    Args:
        directory: of the graph.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reads: set[WeightRead] = set()

    @property
    def reads(self) -> tuple[WeightRead, ...]:
        """What was read so far, in order of place."""
        return tuple(sorted(self._reads))

    def load(self, tensor: TensorProto) -> NDArray[Any] | None:
        """Returns an external tensor's values; None where they cannot be read."""
        copy = TensorProto()
        copy.CopyFrom(tensor)
        try:
            load_external_data_for_tensor(copy, str(self._directory))
        except Exception:  # whatever is wrong with the file: loading the session tells
            return None
        place = ExternalDataInfo(tensor)
        content = copy.raw_data
        self._reads.add(
            WeightRead(place.location, place.offset or 0, len(content), digest_of(content))
        )
        # Before 1.23.2 onnx leaves the mark, and would look for the file again.
        copy.data_location = TensorProto.DEFAULT
        array: NDArray[Any] = numpy_helper.to_array(copy)
        return array
