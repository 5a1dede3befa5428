"""What the kernel says of a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray


def resident(array: NDArray[Any]) -> int:
    """Returns the resident bytes of the mapping in which the array lies, from /proc/self/smaps."""
    address = array.ctypes.data
    for entry in Path("/proc/self/smaps").read_text().split("VmFlags"):
        lines = entry.splitlines()
        for i, line in enumerate(lines):
            first, _, rest = line.partition("-")
            if rest and all(c in "0123456789abcdef" for c in first):
                if int(first, 16) <= address < int(rest.split()[0], 16):
                    rss = next(x for x in lines[i:] if x.startswith("Rss:"))
                    return int(rss.split()[1]) * 1024
                break
    raise AssertionError("the array lies in no mapping")
