"""Large files of a hub repository, fetched so that a killed download goes on where it ended.

The hub's client begins a file anew in every process. So files in large-file storage, whose
content's checksum the hub tells beforehand, are put into the client's cache by ourselves: it keeps
them under that checksum, and takes what is there already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmill.core.errors import DownloadFailed
from tokenmill.package import web
from tokenmill.package.cache import Cache
from tokenmill.package.hub_listing import Listing, RemoteFile, folder_of

Progress = Callable[[str, int, int], None]


def fetch_large_files(
    repository: str,
    cache: Cache,
    listing: Listing,
    files: Sequence[RemoteFile],
    endpoint: str | None,
    progress: Progress,
) -> None:
    """Puts the large ones of these files into the client's cache, checked.

    What the hub does not give us in this way is left to its client, which says why.

    Raises:
        DownloadFailed: a connection was lost, or a file came with another checksum.
        OSError: the file system refused.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    blobs = cache.hub / folder_of(repository) / "blobs"
    partial = cache.partial(folder_of(repository))
    wanted = [file for file in files if file.sha256 and not (blobs / file.sha256).exists()]
    label, total = f"fetching {repository}", sum(file.size for file in wanted)
    done = 0
    for file in wanted:
        url = hf_hub_url(repository, file.name, revision=listing.commit, endpoint=endpoint)
        partial.mkdir(parents=True, exist_ok=True)
        path = partial / file.sha256
        path.touch()
        with path.open("r+b") as out:
            try:
                web.append(
                    url,
                    out,
                    0,
                    headers=build_hf_headers(),
                    report=lambda have, before=done: progress(label, before + have, total),  # type: ignore[misc]  # the default binds it now
                )
            except DownloadFailed:
                if path.stat().st_size:
                    raise
                path.unlink()
                continue
        with path.open("rb") as written:
            found = hashlib.file_digest(written, "sha256").hexdigest()
        if found != file.sha256:
            path.unlink()
            raise DownloadFailed(
                f"{repository}: {file.name} has another checksum",
                why=f"sha256 {found} where {file.sha256} is expected",
                fix="Fetch it again",
            )
        blobs.mkdir(parents=True, exist_ok=True)
        path.replace(blobs / file.sha256)
        done += file.size
    _remove_empty(partial)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
