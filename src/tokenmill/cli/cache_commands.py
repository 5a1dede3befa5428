"""`tokenmill list` and `tokenmill rm`: what is in the cache, and what the catalogue knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tokenmill.cli.console import note

if TYPE_CHECKING:
    from tokenmill.package.cache import Cache
    from tokenmill.package.catalogue_entry import CatalogueEntry, HubEntry


def print_models(cache: Cache, *, as_json: bool) -> None:
    """Prints what is in the cache, then what the catalogue knows; see docs/models.md."""
    from tokenmill.package.catalogue import read_catalogue

    catalogue = read_catalogue()
    cache.clean()
    cached = [
        {
            "kind": entry.kind,
            "name": entry.name,
            "bytes": entry.size,
            "last_used": datetime.fromtimestamp(entry.last_used, UTC).isoformat(timespec="seconds"),
            "path": str(entry.path),
        }
        for entry in cache.list()
    ]
    known = [_known(entry) for _, entry in sorted(catalogue.items())]
    if as_json:
        document = {"format": 1, "root": str(cache.root), "cache": cached, "catalogue": known}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for one in cached:
        day = str(one["last_used"])[:10]
        print(f"{one['kind']:10}  {_megabytes(one['bytes'])}  {day}  {one['name']}")
    if not cached:
        note(f"the cache in {cache.root} is empty")
    for one in known:
        print(
            f"{'catalogue':10}  {_megabytes(one['bytes'])}  {'':10}  {one['name']}: {one['title']}"
        )


def remove_models(cache: Cache, names: Sequence[str], *, everything: bool) -> None:
    """Removes models from the cache and says what went."""
    from tokenmill.package.cache_removal import remove

    cache.clean()
    removed = remove(cache, names, everything=everything)
    for entry in removed:
        note(f"removed {entry.kind} {entry.name}, {entry.size / 1e6:.1f} MB")
    note(f"{sum(entry.size for entry in removed) / 1e6:.1f} MB freed")


def _known(entry: CatalogueEntry | HubEntry) -> dict[str, Any]:
    from tokenmill.package.catalogue_entry import CatalogueEntry

    size = entry.size if isinstance(entry, CatalogueEntry) else 0
    return {"name": entry.name, "title": entry.title, "bytes": size or None}


def _megabytes(size: Any) -> str:
    return f"{'':8}   " if size is None else f"{size / 1e6:8.1f} MB"
