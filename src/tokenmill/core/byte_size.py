"""Byte sizes as people write and read them: "4GB", "512 MiB"."""

from __future__ import annotations

import re
from fractions import Fraction

from tokenmill.core.errors import InvalidOption

_PREFIXES = "kmgt"
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE | re.ASCII)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def parse_bytes(text: str) -> int:
    """Reads a size, case-insensitively and with an optional space before the unit.

    "GB" counts in thousands, as disks and clouds do; "GiB" in 1,024s, and so does a bare "G", as
    wherever memory is limited (ulimit, systemd, containers). A bare number is bytes. What is not a
    whole number of bytes is rounded down.

    Raises:
        InvalidOption: it is no size, or less than one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        number, prefix, ending = match.groups()
        base = 1000 if (ending or "").lower() == "b" else 1024
        power = _PREFIXES.index(prefix.lower()) + 1 if prefix else 0
        # Exact, where a float would lose bytes of large sizes.
        size = int(Fraction(number) * base**power)
    if size < 1:
        raise InvalidOption(
            f"{text!r} is no size in bytes",
            why="it must be a positive number with an optional unit",
            fix='Write for instance "4GB", "1.5GiB" or "512MiB"',
        )
    return size


def format_bytes(size: int) -> str:
    """Returns a size for people, in units of 1,024: "0 bytes", "45.0 KiB", "1.5 GiB"."""
    if abs(size) < 1024:
        return f"{size} bytes"
    value, unit = float(size), 0
    # What would be rounded up to 1024.0 belongs to the next unit.
    while abs(value) >= 1023.95 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"
