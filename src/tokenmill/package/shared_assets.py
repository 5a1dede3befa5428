"""Assets that the variants of a model package share: where they are, and that they are whole."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tokenmill.core.errors import CorruptFile, InvalidPackage
from tokenmill.package.confined import confined_path
from tokenmill.package.document import Section

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}")
_FOLDER = "shared_assets"


def find_shared_assets(root: Path, manifest: Section) -> Mapping[str, Path]:
    """Returns the paths of the assets by address, "sha256:<digest>".

    An asset is named in `shared_assets`, or is a directory `shared_assets/sha256-<digest>`.

    Raises:
        InvalidPackage: a name that is no digest, or a path that leads out of the package.
    """
    section = manifest.section("shared_assets")
    paths = {}
    for name in section.names():
        if _ADDRESS.fullmatch(name) is None:
            raise section.wrong(name, "an asset is named sha256:<64 hexadecimal digits>")
        paths[name] = confined_path(root, section, name, section.text(name) or "")
    folder = root / _FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        address = path.name.replace("-", ":", 1)
        if _ADDRESS.fullmatch(address) and path.is_dir():
            paths.setdefault(address, path)
    return paths


def check_asset(address: str, path: Path, place: str) -> None:
    """Checks an asset against the digest that names it.

    Of a directory that is the digest of the lines "digest  path", one for each file in it, in the
    order of the paths' bytes (as `sha256sum` prints them, and as ONNX Runtime 1.32 computes it).

    Args:
        place: the document or folder that names it.

    Raises:
        CorruptFile: the content has another digest.
        InvalidPackage: it cannot be read.
    """
    found = _digest(path)
    if f"sha256:{found}" != address:
        raise CorruptFile(
            f"{path} has another checksum",
            why=f"sha256 {found}, and {place} names it {address}",
            fix="Fetch the package again",
        )


def _digest(path: Path) -> str:
    try:
        if path.is_file():
            return _file_digest(path)
        names = sorted(
            os.fsencode(file.relative_to(path).as_posix())
            for file in path.rglob("*")
            if file.is_file()
        )
        lines = [
            b"%s  %s\n" % (_file_digest(path / os.fsdecode(name)).encode(), name) for name in names
        ]
    except OSError as error:
        raise InvalidPackage(f"cannot read {path}", why=error.strerror or str(error)) from None
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _file_digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
