"""The checksum of a large file, kept beside it so that it is computed once."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path


def recorded_checksum(file: Path) -> str:
    """Returns a file's SHA-256; computes it where the record is missing, or older than the file.

    Raises:
        OSError: the file cannot be read. A record that cannot be written is no error.
    """
    with contextlib.suppress(OSError, ValueError):
        sha256, stamp = _record(file).read_text().split(maxsplit=1)
        if stamp.strip() == _stamp(file):
            return sha256
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    with contextlib.suppress(OSError):
        record_checksum(file, digest)
    return digest


def record_checksum(file: Path, sha256: str) -> None:
    """Notes what a file's checksum is, for as long as its size and time stay as they are."""
    record = _record(file)
    draft = record.with_suffix(".draft")
    draft.write_text(f"{sha256} {_stamp(file)}\n")
    draft.replace(record)


def _record(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
