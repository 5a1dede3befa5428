"""Where a device's state buffers come from: the one place that knows. Today that is the host."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import OutOfMemory

PAGE_BYTES = mmap.PAGESIZE

# Python 3.11 to 3.13 do not name it; the value is that of all Linux architectures we know.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class HostMemory:
    """Anonymous memory that costs nothing until it is written, and can be given back in part.

    Huge pages are refused: NumPy asks for them, and then 100 tokens in a slot of 8,192 commit
    hundreds of megabytes.
    """

    device = ("cpu", 0)
    """Device type and id, as I/O binding names them."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(nbytes, PAGE_BYTES)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if hasattr(mmap, "MADV_DONTNEED"):
            flags |= _MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, self.nbytes, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemory(
                f"cannot set aside {nbytes} bytes of address space for sequence state",
                why=str(error),
                fix="Lower max_rows or max_context",
            ) from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._map.madvise(mmap.MADV_NOHUGEPAGE)

    def view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns an array over the bytes from `offset` on."""
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)

    def give_back(self, start: int, stop: int) -> None:
        """Returns the whole pages within bytes `start` to `stop`; they read as zeros afterwards."""
        start = -(-start // PAGE_BYTES) * PAGE_BYTES
        stop = stop // PAGE_BYTES * PAGE_BYTES
        if start < stop and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)
