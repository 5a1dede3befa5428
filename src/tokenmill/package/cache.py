"""Where downloads, imported models and rewritten graphs are kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class CacheEntry(NamedTuple):
    """One thing in the cache.

    Attributes:
        kind: "download", "import" or "hub".
        name: as a user may type it, or the directory's name.
        path: where it is.
        size: bytes.
    """

    kind: str
    name: str
    path: Path
    size: int


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
    def imports(self) -> Path:
        """Directories made from GGUF files."""
        return self.root / "imports"

    @property
    def hub(self) -> Path:
        """The hub client's own cache."""
        return self.root / "hub"

    @property
    def graphs(self) -> Path:
        """Graphs as they were rewritten for a backend."""
        return self.root / "graphs"

    def list(self) -> list[CacheEntry]:
        """Returns what is in the cache, by kind and name."""
        entries = []
        for kind, parent in (
            ("download", self.downloads),
            ("import", self.imports),
            ("hub", self.hub),
        ):
            for path in sorted(parent.glob("*")) if parent.is_dir() else []:
                if path.is_dir() and not path.name.startswith("."):
                    name = path.name
                    if kind == "hub":
                        if not name.startswith("models--"):
                            continue
                        name = name.removeprefix("models--").replace("--", "/")
                    entries.append(CacheEntry(kind, name, path, _size_of(path)))
        return entries

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lets one process at a time work on the thing of that name; others wait.

        The lock belongs to the open file, so it ends with its process however that ends.
        """
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

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


def _size_of(directory: Path) -> int:
    """Returns the bytes of all files; linked ones count where they lie."""
    return sum(
        path.lstat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
