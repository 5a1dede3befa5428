"""Where downloads, imported models and rewritten graphs are kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import Busy

HUB_PREFIX = "models--"

_KEEP_PARTIAL = 14 * 24 * 3600
"""Seconds for which an interrupted download waits to be continued."""

_LEFT_BEHIND = re.compile(r"\.(.+)\.[a-z0-9_]{8}(?:\.partial|\.old)?")
"""Directories that were to take a name's place, as `tempfile` calls them."""


class CacheEntry(NamedTuple):
    """One thing in the cache.

    Attributes:
        kind: "download", "import", "hub", or "partial" for a download that was interrupted.
        name: as a user may type it, or the directory's name.
        path: where it is.
        size: bytes.
        last_used: seconds since 1970.
    """

    kind: str
    name: str
    path: Path
    size: int
    last_used: float


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache's layout under one root. Directories appear when something is put there."""

    root: Path

    @classmethod
    def at(cls, root: Path | None) -> Cache:
        """Returns the cache at `root`, or the user's own: $XDG_CACHE_HOME/tokenmill."""
        if root is not None:
            return cls(root.absolute())
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(Path(base).expanduser() / "tokenmill")

    @property
    def downloads(self) -> Path:
        """Files as they were fetched, by catalogue name."""
        return self.root / "downloads"

    @property
    def partials(self) -> Path:
        """Downloads that are not finished, by the name of their lock."""
        return self.root / "partials"

    @property
    def imports(self) -> Path:
        """Directories made from GGUF files."""
        return self.root / "imports"

    @property
    def hub(self) -> Path:
        """The hub client's own cache."""
        return self.root / "hub"

    @property
    def listings(self) -> Path:
        """Which files hub repositories have, by repository."""
        return self.root / "listings"

    @property
    def graphs(self) -> Path:
        """Graphs as they were rewritten for a backend."""
        return self.root / "graphs"

    def partial(self, name: str) -> Path:
        """Returns where the unfinished download of that name is kept."""
        return self.partials / name

    def list(self) -> list[CacheEntry]:
        """Returns what is in the cache, by kind and name."""
        found = []
        for kind, parent in (
            ("download", self.downloads),
            ("import", self.imports),
            ("hub", self.hub),
            ("partial", self.partials),
        ):
            for path in _directories(parent):
                if kind != "hub" or path.name.startswith(HUB_PREFIX):
                    # Another process may finish or remove it just now.
                    with contextlib.suppress(FileNotFoundError):
                        used = path.stat().st_mtime
                        found.append(CacheEntry(kind, name_of(path), path, size_of(path), used))
        return found

    def touch(self, path: Path) -> None:
        """Notes that something in the cache is used now: its directory's time says when."""
        for parent in (self.downloads, self.imports, self.hub):
            if path.is_relative_to(parent) and path != parent:
                with contextlib.suppress(OSError):
                    os.utime(parent / path.relative_to(parent).parts[0])

    def clean(self) -> None:
        """Removes what killed processes left and nobody will use; what is locked stays."""
        for parent in (self.downloads, self.imports, self.hub, self.partials):
            for path in _directories(parent, hidden=True):
                if match := _LEFT_BEHIND.fullmatch(path.name):
                    self._remove_unless_locked(path, match[1])
        oldest = time.time() - _KEEP_PARTIAL
        for path in _directories(self.partials):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    self._remove_unless_locked(path, path.name)

    def _remove_unless_locked(self, path: Path, name: str) -> None:
        # What this program makes is made under a lock; anything else is not ours.
        if (self.root / "locks" / f"{name}.lock").is_file():
            with contextlib.suppress(Busy, OSError), self.try_lock(name):
                shutil.rmtree(path)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lets one process at a time work on the thing of that name; others wait.

        The lock belongs to the open file, so it ends with its process however that ends.
        """
        with self._lock_file(name) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    @contextmanager
    def try_lock(self, name: str) -> Iterator[None]:
        """Does what `lock` does, and raises `Busy` where another process has the lock."""
        with self._lock_file(name) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    f"{name} is in use",
                    why="another process is fetching or importing it",
                    fix="Try again when it has ended",
                ) from None
            yield

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[int]:
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(locks / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def new_directory(self, destination: Path) -> Iterator[Path]:
        """Yields an empty directory that becomes `destination` if the body succeeds."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        try:
            yield part
            if destination.exists():
                shutil.rmtree(destination)
            part.replace(destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def name_of(path: Path) -> str:
    """Returns what a user calls the thing in a directory of the cache."""
    if path.name.startswith(HUB_PREFIX):
        return path.name.removeprefix(HUB_PREFIX).replace("--", "/", 1)
    return path.name


def _directories(parent: Path, *, hidden: bool = False) -> Iterator[Path]:
    """Yields the directories in one, by name; links are not followed."""
    for path in sorted(parent.glob("*")) if parent.is_dir() else []:
        if path.name.startswith(".") == hidden and path.is_dir() and not path.is_symlink():
            yield path


def size_of(directory: Path) -> int:
    """Returns the bytes of all files; linked ones count where they lie."""
    total = 0
    for folder, _, names in os.walk(directory):  # goes on where a folder is gone meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
