import hashlib
import os

import pytest

from tokenmill.package.checksum import record_checksum, recorded_checksum


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    return file


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_a_checksum_is_computed_and_recorded(file):
    assert recorded_checksum(file) == sha256(b"content")
    status = file.stat()
    record = file.with_name("file.sha256").read_text()
    assert record == f"{sha256(b'content')} {status.st_size} {status.st_mtime_ns}\n"


def test_a_record_is_believed_while_the_file_is_the_same(file):
    record_checksum(file, "0" * 64)
    assert recorded_checksum(file) == "0" * 64


def test_a_file_with_another_size_or_time_is_read_again(file):
    record_checksum(file, "0" * 64)
    os.utime(file, ns=(1, 1))
    assert recorded_checksum(file) == sha256(b"content")
    file.write_bytes(b"longer content")
    os.utime(file, ns=(1, 1))
    assert recorded_checksum(file) == sha256(b"longer content")


@pytest.mark.parametrize("record", ["", "word", "\xff\x00", "a b c d"])
def test_a_damaged_record_is_written_anew(file, record):
    file.with_name("file.sha256").write_text(record)
    assert recorded_checksum(file) == sha256(b"content")
    assert file.with_name("file.sha256").read_text().startswith(sha256(b"content"))


def test_a_record_that_cannot_be_written_is_no_error(file):
    file.with_name("file.sha256").mkdir()
    assert recorded_checksum(file) == sha256(b"content")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        recorded_checksum(tmp_path / "none")
