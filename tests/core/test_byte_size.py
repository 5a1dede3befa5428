import pytest

from tokenmill.core.byte_size import format_bytes, parse_bytes
from tokenmill.core.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1073741824", 2**30),
        ("12b", 12),
        ("4GB", 4 * 10**9),
        ("4gib", 4 * 2**30),
        ("4G", 4 * 2**30),
        (" 512 MiB ", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        (".5k", 512),
        ("2kb", 2000),
        ("1TiB", 2**40),
        ("0.0015kB", 1),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "0",
        "0.2",
        "-1GB",
        "4 G B",
        "4GiBs",
        "1e9",
        "1,5GB",
        "4gi",
        "bi",
        "5%",
        "٤GB",
        "4PB",
    ],
)
def test_what_is_no_size_is_refused_with_the_way_to_write_one(text):
    with pytest.raises(InvalidOption, match="is no size in bytes") as caught:
        parse_bytes(text)
    assert caught.value.what.startswith(repr(text))
    assert '"4GB"' in caught.value.fix


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (46080, "45.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (5000 * 2**40, "5000.0 TiB"),
        (-(2**30), "-1.0 GiB"),
    ],
)
def test_a_size_is_written(size, text):
    assert format_bytes(size) == text
