"""The begin-of-sequence token: one where it belongs, never two."""

from __future__ import annotations

from collections.abc import Sequence


def find_prompt_bos(ids: Sequence[int], bos_token_id: int | None) -> int:
    """Returns how many BOS tokens the ids begin with."""
    count = 0
    while count < len(ids) and ids[count] == bos_token_id:
        count += 1
    return count


def one_bos(ids: Sequence[int], bos_token_id: int | None, *, add: bool) -> list[int]:
    """Returns the ids with one BOS where they began with several, or where `add` asks for one.

    Args:
        ids: a whole prompt.
        bos_token_id: None where the model has none; then nothing changes.
        add: begin with BOS also where the ids do not.
    """
    if bos_token_id is None:
        return list(ids)
    found = find_prompt_bos(ids, bos_token_id)
    if found or add:
        return [bos_token_id, *ids[found:]]
    return list(ids)
