"""Philox-4x32-10, a counter-based random generator: the same counter gives the same words.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011; the
constants and the known answers in the tests are those of that paper's reference implementation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: tuple[NDArray[np.uint64], int, int, int], key: int) -> NDArray[np.uint64]:
    """Returns the four output words of each counter.

    Args:
        counter: four 32-bit words; the first is an array [n], the others are shared.
        key: 64 bits, the low half is the first key word.

    Returns:
        uint64 [4, n], each word below 2**32.
    """
    c0 = counter[0]
    c1, c2, c3 = (np.full_like(c0, word) for word in counter[1:])
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0 = (product_1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (product_0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1 = product_1 & _MASK
        c3 = product_0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])
