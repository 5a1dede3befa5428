"""Models from a hub, by their id "org/name"."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from tokenmill.core.errors import DownloadFailed, ModelNotFound
from tokenmill.package import hub_listing
from tokenmill.package.cache import Cache
from tokenmill.package.hub_blobs import fetch_large_files
from tokenmill.package.hub_files import files_of_weights, pick_files
from tokenmill.package.hub_id import is_hub_id
from tokenmill.package.hub_listing import Listing, folder_of
from tokenmill.package.load_options import LoadOptions

__all__ = ["fetch", "is_hub_id"]

Progress = Callable[[str, int, int], None]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHOOSE = LoadOptions()


def fetch(
    repository: str,
    cache: Cache,
    *,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
    offline: bool = False,
    endpoint: str | None = None,
    options: LoadOptions = _CHOOSE,
    progress: Progress | None = None,
) -> Path:
    """Returns a directory with the repository's files, fetched where the cache lacks them.

    A download that was interrupted goes on where it ended.

    Args:
        repository: "org/name".
        revision: branch, tag or commit; None takes the main branch.
        patterns: fetch files that match one of these only; None chooses by `options`.
        offline: use the cache only; so does the environment's HF_HUB_OFFLINE.
        endpoint: the hub's address; None takes the client's own (HF_ENDPOINT).
        options: variant and providers; see `pick_files`.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        ModelNotFound: there is no such repository or revision, it is not public, or no file of it
            matches.
        InvalidOption: the variant is not there, or must be named.
        DownloadFailed: the hub cannot be reached, or files are not in the cache offline; the
            message names them.
    """
    from huggingface_hub import constants

    known = hub_listing.recall(cache, repository, revision)
    is_fixed = revision is not None and _COMMIT.fullmatch(revision) is not None
    with _typed_errors(repository, revision, offline=offline or bool(constants.HF_HUB_OFFLINE)):
        if offline or constants.HF_HUB_OFFLINE or (is_fixed and known is not None):
            names = None if known is None else _needed(repository, cache, known, patterns, options)
            directory = _in_cache(repository, cache, known, names)
            if directory is not None:
                return directory
            if offline or constants.HF_HUB_OFFLINE:
                if known is not None and names is not None:
                    directory = _directory(repository, cache, known)
                    _refuse_missing(repository, directory, names, "and the hub was not asked")
                return _snapshot(repository, cache, revision, endpoint, patterns, local=True)
        with cache.lock(folder_of(repository)):
            _remove_incomplete(cache.hub / folder_of(repository) / "blobs")
            listing = _ask(repository, cache, revision, endpoint) or known
            if listing is None:
                return _snapshot(repository, cache, revision, endpoint, patterns, local=False)
            needed = _needed(repository, cache, listing, patterns, options)
            directory = _fetch_files(repository, cache, listing, needed, endpoint, progress)
            # A graph tells where its weights are when it has come.
            complete = _needed(repository, cache, listing, patterns, options)
            if complete == needed:
                return directory
            return _fetch_files(repository, cache, listing, complete, endpoint, progress)


def _fetch_files(
    repository: str,
    cache: Cache,
    listing: Listing,
    names: Sequence[str],
    endpoint: str | None,
    progress: Progress | None,
) -> Path:
    files = [file for file in listing.files if file.name in set(names)]
    report = progress or (lambda what, done, total: None)
    fetch_large_files(repository, cache, listing, files, endpoint, report)
    wanted = [glob.escape(name) for name in names]
    directory = _snapshot(repository, cache, listing.commit, endpoint, wanted, local=False)
    # Some versions of the client are content with what is there when the hub does not answer.
    _refuse_missing(repository, directory, names, "and the hub did not answer")
    return directory


def _ask(
    repository: str, cache: Cache, revision: str | None, endpoint: str | None
) -> Listing | None:
    """Returns the listing; None where the hub does not give it: the client then says why."""
    try:
        listing = hub_listing.ask(repository, revision, endpoint)
    except Exception:  # the kinds differ between the client's versions
        return None
    hub_listing.remember(cache, repository, revision, listing)
    return listing


def _needed(
    repository: str,
    cache: Cache,
    listing: Listing,
    patterns: Sequence[str] | None,
    options: LoadOptions,
) -> tuple[str, ...]:
    """Returns the chosen files, and those that graphs among them, once they are there, refer to."""
    names = _chosen(repository, listing, patterns, options)
    if patterns:
        return names
    weights = files_of_weights(_directory(repository, cache, listing), names, listing.names)
    return (*names, *(name for name in weights if name not in names))


def _chosen(
    repository: str, listing: Listing, patterns: Sequence[str] | None, options: LoadOptions
) -> tuple[str, ...]:
    if not patterns:
        return pick_files(listing.names, options)
    # As the hub's client reads patterns: a folder stands for what is in it.
    whole = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
    names = tuple(
        name for name in listing.names if any(fnmatch(name, pattern) for pattern in whole)
    )
    if not names:
        raise ModelNotFound(
            f"{repository} has no file that matches {', '.join(patterns)}",
            why=f"it has {', '.join(listing.names[:12])}",
            fix="Correct --files",
        )
    return names


def _in_cache(
    repository: str, cache: Cache, listing: Listing | None, names: Sequence[str] | None
) -> Path | None:
    """Returns the directory if all of these files are in the cache."""
    if listing is None or names is None:
        return None
    directory = _directory(repository, cache, listing)
    return None if _missing(directory, names) else directory


def _directory(repository: str, cache: Cache, listing: Listing) -> Path:
    return cache.hub / folder_of(repository) / "snapshots" / listing.commit


def _missing(directory: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (directory / name).is_file()]


def _refuse_missing(repository: str, directory: Path, names: Sequence[str], because: str) -> None:
    missing = _missing(directory, names)
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise DownloadFailed(
            f"{repository} is not complete in the cache",
            why=f"{', '.join(missing[:8])}{more} is missing, {because}",
            fix="Go online, or give a directory",
        )


def _snapshot(
    repository: str,
    cache: Cache,
    revision: str | None,
    endpoint: str | None,
    patterns: Sequence[str] | None,
    *,
    local: bool,
) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repository,
            revision=revision,
            cache_dir=cache.hub,
            allow_patterns=list(patterns) if patterns else None,
            local_files_only=local,
            endpoint=endpoint,
        )
    )


def _remove_incomplete(blobs: Path) -> None:
    """Removes what killed processes left of files; the client begins those anew."""
    for path in blobs.glob("*.incomplete"):
        with contextlib.suppress(OSError):
            path.unlink()


@contextmanager
def _typed_errors(repository: str, revision: str | None, *, offline: bool) -> Iterator[None]:
    from huggingface_hub import errors as hub

    at = f" at {revision}" if revision else ""
    try:
        yield
    except hub.GatedRepoError:
        raise ModelNotFound(
            f"{repository} is not open to you",
            why="its owner grants access one by one",
            fix="Ask for access on the hub and set HF_TOKEN",
        ) from None
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.HFValidationError) as error:
        raise ModelNotFound(
            f"the hub has no {repository}{at}", why=_first_line(error), fix="Check the id"
        ) from None
    except hub.LocalEntryNotFoundError as error:
        raise DownloadFailed(
            f"{repository}{at} could not be fetched",
            why="it is not in the cache, and the hub was not asked"
            if offline
            else f"it is not in the cache, and the hub did not answer: {_first_line(error)}",
            fix="Go online, or give a directory",
        ) from None
    except (OSError, hub.HTTPError) as error:
        raise DownloadFailed(
            f"{repository}{at} could not be fetched", why=_first_line(error), fix="Try again later"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
