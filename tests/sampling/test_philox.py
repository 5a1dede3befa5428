import numpy as np
import pytest

from tokenmill.sampling.philox import philox4x32


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            0xFFFFFFFFFFFFFFFF,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_the_reference_implementation(counter, key, words):
    first, *rest = counter
    got = philox4x32((np.array([first], dtype=np.uint64), *rest), key)
    assert tuple(int(word) for word in got[:, 0]) == words


def test_each_counter_of_a_batch_gives_what_it_gives_alone():
    together = philox4x32((np.arange(7, dtype=np.uint64), 5, 1, 0), 42)
    for i in range(7):
        alone = philox4x32((np.array([i], dtype=np.uint64), 5, 1, 0), 42)
        assert (together[:, i] == alone[:, 0]).all()
