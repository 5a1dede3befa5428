"""What every backend asks of the rows it is given, before it computes any of them."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest, TokenmillError, Unsupported
from tokenmill.core.rows import Logits, Row


def refuse_unsupported(row: Row, features: Set[str]) -> None:
    """Raises `Unsupported`, naming the feature, where the row asks for one that is not there."""
    plain = row.positions is None and row.adapter is None and row.reduce is None
    if plain and not row.embeds and not row.hidden:
        return  # as nearly always
    asked = (
        ("embeds", bool(row.embeds)),
        ("positions", row.positions is not None),
        ("adapters", row.adapter is not None),
        ("reduce", row.reduce is not None),
        ("hidden", row.hidden),
    )
    for feature, wanted in asked:
        if wanted and feature not in features:
            raise Unsupported(
                f"this backend does not support {feature!r}",
                why=f"it supports {', '.join(sorted(features))}",
            )


def row_fault(row: Row, length: int, max_context: int, vocab_size: int) -> TokenmillError | None:
    """Returns why the row cannot be computed, or None.

    Args:
        row: one row of a step.
        length: the committed tokens of its sequence.
        max_context: most tokens in a sequence.
        vocab_size: token ids are below it.
    """
    n = len(row.tokens)
    if n == 0:
        return InvalidRequest("a row without tokens", why="every row adds at least one token")
    if length + n > max_context:
        return ContextLengthExceeded(
            f"{length + n} tokens do not fit",
            why=f"{length} are there, {n} are new, and the context holds {max_context}",
            fix="Shorten the prompt or raise max_context",
        )
    if n == 1:  # decoding, where NumPy's own calls would be most of the time
        low = high = int(row.tokens[0])
    else:
        tokens = np.asarray(row.tokens)
        low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        return InvalidRequest(
            f"token id {low if low < 0 else high} does not exist",
            why=f"the vocabulary has {vocab_size} entries",
        )
    if not isinstance(row.logits, Logits) and any(not 0 <= i < n for i in row.logits):
        return InvalidRequest(
            f"logits of offsets {list(row.logits)} were asked for",
            why=f"the row has {n} tokens",
        )
    return None


def wanted_offsets(row: Row) -> Sequence[int]:
    """Returns the offsets into the row's tokens whose logits are wanted, in order."""
    n = len(row.tokens)
    if row.logits is Logits.LAST:
        return (n - 1,)
    if row.logits is Logits.NONE:
        return ()
    if row.logits is Logits.ALL:
        return range(n)
    assert not isinstance(row.logits, Logits), "the three members are handled above"
    return row.logits
