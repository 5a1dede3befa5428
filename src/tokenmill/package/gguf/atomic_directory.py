"""A directory that appears whole, or not at all."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def replaced_directory(destination: Path) -> Iterator[Path]:
    """Gives an empty directory that takes the destination's place when the block succeeds.

    It is a hidden sibling until then, and is deleted when the block raises. A directory that is
    there already stays whole until the new one replaces it, in one step where the system can.

    Raises:
        OSError: the file system refused.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(
        tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".partial", dir=destination.parent)
    )
    try:
        # mkdtemp makes it private; the result should be as readable as any other directory.
        temporary.chmod(0o755)
        yield temporary
        if not destination.exists():
            temporary.rename(destination)
        elif not _exchange(temporary, destination):
            _replace_in_two_steps(temporary, destination)
    finally:
        # After an exchange this is the old directory.
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(left: Path, right: Path) -> bool:
    """Swaps two names in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    names = os.fsencode(left), os.fsencode(right)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _replace_in_two_steps(new: Path, destination: Path) -> None:
    aside = new.with_suffix(".old")
    destination.rename(aside)
    try:
        new.rename(destination)
    except OSError:
        aside.rename(destination)
        raise
    shutil.rmtree(aside, ignore_errors=True)
