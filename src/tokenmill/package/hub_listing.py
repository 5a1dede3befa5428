"""Which files a hub repository has: asked of the hub, and remembered for when it is not there."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.package.cache import HUB_PREFIX, Cache

_SHA256 = re.compile(r"[0-9a-f]{64}")


class RemoteFile(NamedTuple):
    """A file of a repository.

    Attributes:
        name: its path there.
        size: bytes.
        sha256: of its content, for files in large-file storage; else "".
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one commit."""

    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The files' paths."""
        return tuple(file.name for file in self.files)


def folder_of(repository: str) -> str:
    """Returns the name of a repository's folder in the client's cache."""
    return HUB_PREFIX + repository.replace("/", "--")


def ask(repository: str, revision: str | None, endpoint: str | None) -> Listing:
    """Asks the hub. Raises what its client raises."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=endpoint)
    commit = api.repo_info(repository, revision=revision).sha or "main"
    tree = api.list_repo_tree(repository, recursive=True, revision=commit)
    return Listing(commit, tuple(_remote(item) for item in tree if isinstance(item, RepoFile)))


def _remote(item: Any) -> RemoteFile:
    digest = item.lfs.sha256 if item.lfs else ""
    # It becomes the name of a file: what is no checksum is not to lead out of the cache.
    return RemoteFile(item.path, item.size or 0, digest if _SHA256.fullmatch(digest) else "")


def remember(cache: Cache, repository: str, revision: str | None, listing: Listing) -> None:
    """Keeps a listing under the revision that was asked for and under its commit."""
    document = _read(cache, repository)
    document["revisions"][revision or "main"] = listing.commit
    document["commits"][listing.commit] = listing.files
    file = _file(cache, repository)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(file)


def recall(cache: Cache, repository: str, revision: str | None) -> Listing | None:
    """Returns what was remembered for a revision; None where nothing was."""
    document = _read(cache, repository)
    wanted = revision or "main"
    commit = document["revisions"].get(wanted, wanted)
    try:
        files = document["commits"][commit]
        return Listing(commit, tuple(RemoteFile(str(n), int(s), str(d)) for n, s, d in files))
    except (KeyError, TypeError, ValueError):
        return None


def _file(cache: Cache, repository: str) -> Path:
    return cache.listings / f"{folder_of(repository)}.json"


def _read(cache: Cache, repository: str) -> dict[str, Any]:
    """Returns the record; an empty one where it is missing or damaged."""
    try:
        document = json.loads(_file(cache, repository).read_text())
        if isinstance(document["revisions"], dict) and isinstance(document["commits"], dict):
            return {"revisions": document["revisions"], "commits": document["commits"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"revisions": {}, "commits": {}}
