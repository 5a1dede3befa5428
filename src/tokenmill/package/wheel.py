"""Files out of wheels, which pip downloads with whatever index the user's machine is set up for.

A wheel is opened as an archive; nothing in it is installed or run.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from tokenmill.core.errors import DownloadFailed
from tokenmill.package.catalogue_entry import Part

_BLOCK = 1 << 20


def member_blocks(part: Part, folder: Path) -> Iterator[bytes]:
    """Downloads a wheel into an empty folder and yields its member's bytes.

    Raises:
        DownloadFailed: pip failed, or the wheel does not hold the member.
    """
    wheel = download(part.wheel, folder)
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


def download(requirement: str, folder: Path) -> Path:
    """Fetches a wheel with the first tool there is; returns it, or the folder it was opened in.

    Raises:
        DownloadFailed: there is no tool, or it failed.
    """
    command = command_of(requirement, folder)
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


def command_of(requirement: str, folder: Path) -> list[str] | None:
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
