"""What the catalogue knows of a model: where its file or its repository is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Part(NamedTuple):
    """A member of a wheel.

    Attributes:
        wheel: name and version, "name==version".
        member: the path inside it.
    """

    wheel: str
    member: str


class UrlPart(NamedTuple):
    """A file on the web.

    Attributes:
        url: https, or http on this machine.
    """

    url: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A file that can be fetched by name, and is then imported.

    Attributes:
        name: as typed.
        title: for people, with the licence.
        file: the name of the joined file.
        sha256: of that file.
        size: its bytes; 0 where the catalogue does not say.
        parts: where it comes from, in order.
    """

    name: str
    title: str
    file: str
    sha256: str
    size: int
    parts: tuple[Part | UrlPart, ...]


@dataclass(frozen=True, slots=True)
class HubEntry:
    """A hub repository under a name of one's own.

    Attributes:
        name: as typed.
        title: for people.
        repository: "org/name".
        revision: branch, tag or commit; None takes the main branch.
        files: patterns; empty chooses.
        variant: taken where the user names none; None chooses.
    """

    name: str
    title: str
    repository: str
    revision: str | None = None
    files: tuple[str, ...] = ()
    variant: str | None = None
