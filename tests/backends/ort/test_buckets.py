from __future__ import annotations

import pytest

from tokenmill.backends.ort.buckets import bucket, next_capacity


@pytest.mark.parametrize(
    ("tokens", "capacity"), [(0, 256), (256, 256), (257, 512), (600, 1024), (1025, 1500)]
)
def test_capacities_double_up_to_the_context(tokens: int, capacity: int) -> None:
    assert bucket(tokens, 1500) == capacity


def test_a_small_context_is_the_only_capacity() -> None:
    assert bucket(1, 100) == bucket(100, 100) == 100


def test_memory_grows_when_a_row_outgrows_it() -> None:
    assert next_capacity(256, 256, 4096) == 256
    assert next_capacity(256, 257, 4096) == 512
    assert next_capacity(256, 3000, 4096) == 4096


def test_memory_shrinks_only_where_an_eighth_stays_free() -> None:
    assert next_capacity(512, 256, 4096) == 512
    assert next_capacity(512, 229, 4096) == 512
    assert next_capacity(512, 228, 4096) == 256
    assert next_capacity(4096, 10, 4096) == 256
    assert next_capacity(300, 300, 300) == 300
