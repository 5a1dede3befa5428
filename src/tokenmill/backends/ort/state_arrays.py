"""Which arrays a sequence's state consists of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenmill.backends.ort.pages import HEADS_TOKENS_DIM, PageGeometry
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import AttentionState

_DTYPES = {"float32", "float16", "int8", "uint8"}

KINDS = ("key", "value")


def state_geometry(
    attention: Sequence[AttentionState], layout: str = HEADS_TOKENS_DIM
) -> tuple[PageGeometry, ...]:
    """Returns key and value of each layer, in order.

    Args:
        attention: of each layer.
        layout: `HEADS_TOKENS_DIM`, or `FOLDED`, where all heads of a token are one.

    Raises:
        UnsupportedModel: state of a type that NumPy does not know or no kernel takes.
    """
    found: list[PageGeometry] = []
    for layer in attention:
        if layer.dtype not in _DTYPES:
            raise UnsupportedModel(
                f"attention state of type {layer.dtype} in layer {layer.layer}",
                why=f"this backend keeps {', '.join(sorted(_DTYPES))}",
            )
        heads, dim = layer.num_kv_heads, layer.head_dim
        if layout != HEADS_TOKENS_DIM:
            heads, dim = 1, heads * dim
        dtype = np.dtype(layer.dtype)
        found += [PageGeometry(kind, layer.layer, layout, heads, dim, dtype) for kind in KINDS]
    return tuple(found)
