"""Takes models out of the cache, by the names that listing it shows."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenmill.core.errors import InvalidOption, InvalidPackage, ModelNotFound, TokenmillError
from tokenmill.package.cache import Cache, CacheEntry, size_of
from tokenmill.package.identity import IDENTITY_LENGTH, content_identity


def remove(cache: Cache, names: Sequence[str], *, everything: bool = False) -> list[CacheEntry]:
    """Removes all things of these names, and the imports that were made of their files.

    Nothing is removed where one of the names is unknown. A model that is running keeps the files
    that it has open.

    Args:
        everything: remove all that is listed, and the rewritten graphs; `names` is empty then.

    Returns:
        What was removed; the rewritten graphs as one entry of the kind "graphs".

    Raises:
        ModelNotFound: nothing has one of the names; the message has the nearest.
        Busy: another process is fetching or importing one of them; earlier ones are removed.
        InvalidOption: names and everything, or neither.
        TokenmillError: the file system refused.
    """
    if everything == bool(names):
        why = "both are given" if everything else "neither is given"
        raise InvalidOption("rm takes names, or --all", why=why)
    entries = cache.list()
    for name in names:
        if not any(entry.name == name for entry in entries):
            raise _unknown(name, entries)
    chosen = [entry for entry in entries if everything or entry.name in names]
    made = {path for entry in chosen for path in _imports_of(entry, entries)}
    chosen += [entry for entry in entries if entry.path in made and entry not in chosen]
    removed = []
    try:
        for entry in chosen:
            with cache.try_lock(entry.path.name):
                if entry.kind == "hub":
                    _remove_hub_records(cache, entry.path.name)
                # Another process may have finished a download, or removed the thing, meanwhile.
                if entry.path.is_dir():
                    _remove_tree(entry.path)
                    removed.append(entry)
        if everything and cache.graphs.is_dir():
            graphs = cache.graphs
            used = graphs.stat().st_mtime
            removed.append(CacheEntry("graphs", graphs.name, graphs, size_of(graphs), used))
            shutil.rmtree(graphs)
    except OSError as error:
        raise TokenmillError(
            f"{error.filename or cache.root} could not be removed",
            why=error.strerror or str(error),
            fix="Check the rights there",
        ) from None
    return removed


def _imports_of(entry: CacheEntry, entries: Sequence[CacheEntry]) -> Iterator[Path]:
    """Yields the directories that were made of the GGUF files in a download or a repository."""
    if entry.kind not in ("download", "hub"):
        return
    imports = [one.path for one in entries if one.kind == "import"]
    for file in entry.path.rglob("*.gguf"):
        able = [path for path in imports if path.name.startswith(f"{file.stem}-")]
        # A file that is gone, or that may not be read, tells nothing.
        with contextlib.suppress(InvalidPackage):
            if able:
                content = content_identity(file)[:IDENTITY_LENGTH]
                yield from (path for path in able if f"-{content}-" in path.name)


def _remove_hub_records(cache: Cache, folder: str) -> None:
    """Removes what belongs to a hub repository beside its folder."""
    with contextlib.suppress(FileNotFoundError):
        (cache.listings / f"{folder}.json").unlink()
    shutil.rmtree(cache.hub / ".locks" / folder, ignore_errors=True)


def _remove_tree(path: Path) -> None:
    """Removes a directory; to others it disappears at once, whatever interrupts the work."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        os.replace(path, aside)
    except OSError:
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def _unknown(name: str, entries: Sequence[CacheEntry]) -> ModelNotFound:
    known = sorted({entry.name for entry in entries})
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        hint = f"Did you mean {close[0]!r}?"
    else:
        hint = f"It has {', '.join(known[:12])}" if known else "It is empty"
    return ModelNotFound(f"the cache has no {name!r}", fix=hint)
