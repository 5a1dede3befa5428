"""Headers that lie: every cut and many damaged bytes end in a typed error."""

import struct

import numpy as np
import pytest

from support.tiny_gguf import write_tiny_gguf
from tokenmill.core.errors import CorruptFile, ModelNotFound, TokenmillError, UnsupportedModel
from tokenmill.package.gguf.reader import read_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_tiny_gguf(path)
    return path.read_bytes()


def write(tmp_path, data):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    return path


def test_a_truncation_says_what_is_needed_and_what_is_there(tmp_path, whole):
    # The file's last bytes may be padding behind the last tensor.
    path = write(tmp_path, whole[:-4000])
    with pytest.raises(CorruptFile, match=rf"(\d+) bytes are needed.*{len(whole) - 4000}"):
        read_gguf(path)


def test_every_cut_in_the_header_is_a_corrupt_file(tmp_path, whole):
    for size in [*range(64), *range(64, 12_000, 97)]:
        with pytest.raises(CorruptFile):
            read_gguf(write(tmp_path, whole[:size]))


def test_damaged_bytes_never_escape_as_another_error(tmp_path, whole):
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for at in rng.integers(4, 14_000, 3):
            data[at] = rng.integers(0, 256)
        try:
            read_gguf(write(tmp_path, bytes(data)))
        except TokenmillError:
            refused += 1
    assert refused > 50


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CorruptFile, match="not a GGUF file"):
        read_gguf(write(tmp_path, b"PK\x03\x04" + bytes(100)))


def test_huge_counts_are_refused_before_anything_is_allocated(tmp_path):
    data = b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)
    with pytest.raises(CorruptFile, match="tensor count"):
        read_gguf(write(tmp_path, data))


@pytest.mark.parametrize(
    ("version", "named"),
    [(struct.pack("<I", 1), "version 1"), (struct.pack(">I", 3), "big-endian")],
)
def test_versions_that_we_do_not_read_are_named(tmp_path, version, named):
    with pytest.raises(UnsupportedModel, match=named):
        read_gguf(write(tmp_path, b"GGUF" + version + bytes(64)))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        read_gguf(tmp_path / "none.gguf")


def test_a_file_that_shrinks_after_its_header_was_read_is_corrupt(tmp_path, whole):
    path = write(tmp_path, whole)
    file = read_gguf(path)
    path.write_bytes(whole[: len(whole) // 2])
    last = max(file.tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(CorruptFile, match="bytes are needed"):
        file.read(last)
