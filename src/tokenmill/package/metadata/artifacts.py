"""Files that a document names: inside the package, and there."""

from __future__ import annotations

from pathlib import Path

from tokenmill.package.confined import confined_path
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import required_text


def artifact_path(root: Path, section: Section, name: str) -> Path:
    """Returns the path of the file that a field names, relative to the root.

    Raises:
        InvalidPackage: the path leads out of the package, itself or by a link, or there is no
            such file; names the field.
    """
    location = required_text(section, name)
    path = confined_path(root, section, name, location)
    if not path.is_file():
        raise section.wrong(name, f"{location!r} is not a file")
    return path
