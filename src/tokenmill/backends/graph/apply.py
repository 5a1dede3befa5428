"""All rewrites in order. Imported only where the cache has no answer, since `onnx` is slow."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.inliner import inline_local_functions

from tokenmill.backends.graph.company import RowsDepend, check_company
from tokenmill.backends.graph.cut_rows import cut_rows
from tokenmill.backends.graph.direct_lengths import direct_lengths
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.ports import (
    LENGTHS_INPUT,
    POSITIONS_INPUT,
    TOTAL_INPUT,
    DecoderPorts,
)
from tokenmill.backends.graph.rewritten import Rewritten
from tokenmill.backends.graph.share_buffers import Shared
from tokenmill.backends.graph.share_buffers import share_buffers as to_shared_buffers
from tokenmill.backends.graph.weights_by_place import weights_by_place
from tokenmill.core.errors import CorruptFile

_APART = "only rows of one length share a call"


def apply_rewrites(
    content: bytes, ports: DecoderPorts, file: Path, *, share_buffers: bool = True
) -> Rewritten:
    """Returns the rewritten model.

    Args:
        content: of `file`.
        share_buffers: whether to try to let past and present be one buffer.

    Raises:
        CorruptFile: `content` is not an ONNX model; `file` names it.
    """
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, which has no typed import
        raise CorruptFile(
            f"{file} is not an ONNX model", why=str(error), fix="Fetch or export it again"
        ) from None
    outside, shared = OutsideWeights(file.parent), Shared(False, (), rows_depend=False)
    if share_buffers and ports.state:
        if model.functions:
            model = inline_local_functions(model)
        shared = to_shared_buffers(model, ports, outside)
    done = shared.applied | cut_rows(model.graph, ports.logits, POSITIONS_INPUT)
    if ports.attention_mask is not None and ports.in_place:
        done |= direct_lengths(model, ports.attention_mask, LENGTHS_INPUT, TOTAL_INPUT)
    if ports.in_place:
        shared = _look_at_company(model, ports, outside)
    graph = None
    if done:
        weights_by_place(model, file, content)
        graph = bytes(model.SerializeToString())
    return Rewritten(graph, *shared, outside.reads)


def _look_at_company(
    model: onnx.ModelProto, ports: DecoderPorts, outside: OutsideWeights
) -> Shared:
    """Returns whether rows depend on the longest one, of a graph that shared buffers as it was."""
    if model.functions:
        model = inline_local_functions(model)
    try:
        check_company(model, ports, outside)
    except RowsDepend as error:
        return Shared(False, (f"{error}: {_APART}",), rows_depend=True)
    except Exception as error:
        # Anything may be in a graph: where it cannot be looked at, nothing is promised.
        return Shared(False, (f"{_APART}: it cannot be looked at ({error!r})",), rows_depend=True)
    return Shared(False, (), rows_depend=False)
