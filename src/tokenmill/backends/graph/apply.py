"""All rewrites in order. Imported only where the cache has no answer, since `onnx` is slow."""

from __future__ import annotations

from pathlib import Path

import onnx

from tokenmill.backends.graph.cut_rows import cut_rows
from tokenmill.backends.graph.direct_lengths import direct_lengths
from tokenmill.backends.graph.ports import (
    LENGTHS_INPUT,
    POSITIONS_INPUT,
    TOTAL_INPUT,
    DecoderPorts,
)
from tokenmill.core.errors import CorruptFile


def apply_rewrites(content: bytes, ports: DecoderPorts, file: Path) -> bytes | None:
    """Returns the rewritten model, or None where no pattern is recognised.

    Raises:
        CorruptFile: `content` is not an ONNX model; `file` names it.
    """
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, which has no typed import
        raise CorruptFile(
            f"{file} is not an ONNX model", why=str(error), fix="Fetch or export it again"
        ) from None
    done = cut_rows(model.graph, ports.logits, POSITIONS_INPUT)
    if ports.attention_mask is not None:
        done |= direct_lengths(model, ports.attention_mask, LENGTHS_INPUT, TOTAL_INPUT)
    if not done:
        return None
    return bytes(model.SerializeToString())
