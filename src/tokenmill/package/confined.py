"""Paths that a document names stay inside the package."""

from __future__ import annotations

import os
from pathlib import Path

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.document import Section
from tokenmill.package.external_data import is_inside

_FIX = "Everything that a portable package names must lie in its own directory"


def confined_path(
    root: Path, section: Section, name: str, location: str, *, base: Path | None = None
) -> Path:
    """Returns the path that a field names.

    Args:
        root: the package's directory.
        section, name: the field, for messages.
        location: what it says.
        base: the directory inside the root that it is relative to; the root if not given.

    Raises:
        InvalidPackage: it leads out of the root, by itself or by a link, or nothing is there;
            names the field.
    """
    check_relative(section, name, location)
    path = (base or root) / location
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise section.wrong(name, f"{location!r}: {why}", "Fetch the package again") from None
    if not is_inside(resolved, root):
        raise section.wrong(name, f"{location!r} is a link out of the package", _FIX)
    return path


def check_relative(section: Section, name: str, location: str) -> None:
    """Checks that a path leads nowhere but downwards; looks at its text only.

    Raises:
        InvalidPackage: it does not; names the field.
    """
    if not location or "\0" in location or "\\" in location:
        raise section.wrong(name, f"{location!r} is not a relative path with forward slashes")
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise section.wrong(name, f"{location!r} leads out of the package", _FIX)


def check_links(directory: Path, root: Path) -> None:
    """Checks that no link below a directory leads out of the root.

    Raises:
        InvalidPackage: one does, or leads in a circle; names it.
    """
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(folder) / name
            if not path.is_symlink():
                continue
            try:
                inside = is_inside(path.resolve(strict=True), root)
            except (OSError, RuntimeError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise InvalidPackage(f"{path} is a broken link", why=why, fix=_FIX) from None
            if not inside:
                raise InvalidPackage(f"{path} is a link out of the package", fix=_FIX)
