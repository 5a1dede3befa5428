"""The process's memory, as the operating system counts it."""

from __future__ import annotations

import resource
import sys


def peak_resident_bytes() -> int:
    """Returns the most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int | None:
    """Returns the memory resident now, in bytes; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None
