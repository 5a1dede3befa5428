"""The shape of a hub id, "org/name"."""

from __future__ import annotations

import re

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(text: str) -> bool:
    """Returns whether the text has the shape of a hub id."""
    return _ID.fullmatch(text) is not None
