"""Rewritten graphs on disk, by content. Damage is noticed, and costs a rewrite."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_WRITING = ".writing-"
_STALE_SECONDS = 3600
"""A file that is written for longer has lost its writer."""


class GraphCache:
    """Files named `<key>-<digest of the content>.graph` in one directory.

    The digest makes a damaged file recognisable without a second file. Files are written beside
    their place and renamed, so that readers never see half of one; a directory that cannot be
    written only costs time. What a killed writer left goes when the next one comes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: str) -> bytes | None:
        """Returns what was stored under the key, or None. Removes what is damaged."""
        return next(self.load_all(key), None)

    def load_all(self, key: str) -> Iterator[bytes]:
        """Yields all that was stored under the key. Removes what is damaged."""
        for file in sorted(self._directory.glob(f"{key}-*.graph")):
            try:
                content = file.read_bytes()
            except OSError:
                continue
            if file.name == _name(key, content):
                yield content
                continue
            with contextlib.suppress(OSError):
                file.unlink()

    def store(self, key: str, content: bytes) -> None:
        """Keeps the content under the key; does nothing where the directory is not writable."""
        temporary = ""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            prefix = f"{_WRITING}{os.getpid()}-"
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=prefix)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._directory / _name(key, content))
        except OSError:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        for file in self._directory.glob(f"{_WRITING}*"):
            # A writer elsewhere whose file goes under its hands only keeps nothing.
            with contextlib.suppress(OSError):
                if _has_lost_writer(file):
                    file.unlink()


def _has_lost_writer(file: Path) -> bool:
    """Whether the process that a file is named after is gone, or has had more than enough time."""
    if time.time() - file.stat().st_mtime > _STALE_SECONDS:
        return True
    process = file.name.removeprefix(_WRITING).partition("-")[0]
    if not process.isdecimal() or os.name != "posix":
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It is another user's, or no number of a process.
        return False
    return False


def _name(key: str, content: bytes) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()[:32]}.graph"
