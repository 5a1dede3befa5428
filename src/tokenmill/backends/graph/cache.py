"""Rewritten graphs on disk, by content. Damage is noticed, and costs a rewrite."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class GraphCache:
    """Files named `<key>-<digest of the content>.graph` in one directory.

    The digest makes a damaged file recognisable without a second file. Files are written beside
    their place and renamed, so that readers never see half of one; a directory that cannot be
    written only costs time.
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
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._directory / _name(key, content))
        except OSError:
            if temporary:
                Path(temporary).unlink(missing_ok=True)


def _name(key: str, content: bytes) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()[:32]}.graph"
