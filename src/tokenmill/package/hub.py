"""Models from a hub, by their id "org/name"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.core.errors import DownloadFailed, ModelNotFound
from tokenmill.package.cache import Cache

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(text: str) -> bool:
    """Returns whether the text has the shape of a hub id."""
    return _ID.fullmatch(text) is not None


def fetch(
    repository: str,
    cache: Cache,
    *,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
    offline: bool = False,
    endpoint: str | None = None,
) -> Path:
    """Returns a directory with the repository's files, fetched where the cache lacks them.

    Args:
        repository: "org/name".
        revision: branch, tag or commit; None takes the main branch.
        patterns: fetch files that match one of these only; None fetches all.
        offline: use the cache only; so does the environment's HF_HUB_OFFLINE.
        endpoint: the hub's address; None takes the client's own (HF_ENDPOINT).

    Raises:
        ModelNotFound: there is no such repository or revision, or it is not public.
        DownloadFailed: the hub cannot be reached, or the files are not in the cache offline.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    arguments: dict[str, Any] = {
        "revision": revision,
        "cache_dir": cache.hub,
        "allow_patterns": list(patterns) if patterns else None,
        "local_files_only": offline,
        "endpoint": endpoint,
    }
    at = f" at {revision}" if revision else ""
    try:
        return Path(snapshot_download(repository, **arguments))
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
            if offline or constants.HF_HUB_OFFLINE
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
