"""Models by name: files that a package registry or the web serves, and hub repositories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache as memoise
from pathlib import Path

from tokenmill.core.errors import DownloadFailed
from tokenmill.core.options import config_file
from tokenmill.package.assemble import assemble, has_progress
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue_entry import CatalogueEntry, HubEntry, Part, UrlPart
from tokenmill.package.catalogue_file import read_catalogue_file
from tokenmill.package.checksum import record_checksum, recorded_checksum

__all__ = ["CatalogueEntry", "HubEntry", "Part", "UrlPart", "pull", "read_catalogue"]

Progress = Callable[[str, int, int], None]


def read_catalogue(
    environ: Mapping[str, str] | None = None,
) -> Mapping[str, CatalogueEntry | HubEntry]:
    """Returns the catalogue by name: the built-in one, with the user's own laid over it.

    Args:
        environ: tells where the user's file is, `catalogue.toml` beside the configuration file;
            None takes the process's.

    Raises:
        InvalidOption: the user's file cannot be read, or a field of it cannot be used.
    """
    return {**_built_in(), **read_catalogue_file(catalogue_file(environ))}


def catalogue_file(environ: Mapping[str, str] | None = None) -> Path:
    """Returns where the user's own catalogue is looked for."""
    return config_file(os.environ if environ is None else environ).with_name("catalogue.toml")


@memoise
def _built_in() -> Mapping[str, CatalogueEntry | HubEntry]:
    return read_catalogue_file(Path(__file__).with_name("catalogue.toml"))


def pull(
    entry: CatalogueEntry, cache: Cache, *, offline: bool = False, progress: Progress | None = None
) -> Path:
    """Returns the model's file, fetched if it is not in the cache yet.

    A download that was interrupted goes on where it ended, as far as what is there can be checked.

    Raises:
        DownloadFailed: offline, or it could not be fetched, or what came is not what the
            catalogue expects.
    """
    directory = cache.downloads / entry.name
    target = directory / entry.file
    if _is_there(entry, target):
        return target
    if offline:
        raise DownloadFailed(
            f"{entry.name} is not in the cache",
            why=f"offline was asked for, and there is no whole {target} with its checksum",
            fix="Fetch it online",
        )
    report = progress or (lambda what, done, total: None)
    try:
        with cache.lock(entry.name):
            if not _is_there(entry, target):
                _fetch(entry, cache, directory, report)
    except OSError as error:
        raise DownloadFailed(
            f"{entry.name} could not be written to {cache.root}",
            why=error.strerror or str(error),
            fix="Check the room and the rights there",
        ) from None
    return target


def _is_there(entry: CatalogueEntry, target: Path) -> bool:
    """Whether the very file that the catalogue means is there: it may have meant another before."""
    try:
        if target.stat().st_size != (entry.size or target.stat().st_size):
            return False
        return recorded_checksum(target) == entry.sha256
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False


def _fetch(entry: CatalogueEntry, cache: Cache, directory: Path, report: Progress) -> None:
    folder = cache.partial(entry.name)
    try:
        file = assemble(entry, folder, report)
    except BaseException:
        if not has_progress(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    with cache.new_directory(directory) as part:
        file.replace(part / entry.file)
        record_checksum(part / entry.file, entry.sha256)
    shutil.rmtree(folder, ignore_errors=True)
