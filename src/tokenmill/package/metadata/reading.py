"""What every part of the reader shares: strictness, and the notes that it takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.model_package import Ignored

NOT_EXECUTED = "this version does not execute it"


@dataclass(slots=True)
class Reading:
    """One reading of a document.

    Attributes:
        lossy: go on without what is refused otherwise, and list it.
        ignored: what changes no output.
        losses: what would change the output, or is not known.
    """

    lossy: bool
    ignored: list[Ignored] = field(default_factory=list)
    losses: list[Ignored] = field(default_factory=list)

    def only(self, section: Section, known: Collection[str]) -> None:
        """Refuses fields that the format does not define.

        Raises:
            InvalidPackage: there is one, and the reading is strict.
        """
        for name in section.names():
            if name in known:
                continue
            if not self.lossy:
                raise InvalidPackage(
                    f"{section.file}: {section.field(name)}",
                    why=f"there is no such field; there are {', '.join(sorted(known))}",
                    fix="Correct the name, or read the package lossily (--lossy)",
                )
            loss = Ignored(section.evidence(name), section.brief(name), "not known to this version")
            self.losses.append(loss)

    def refuse(self, section: Section, name: str, why: str) -> None:
        """Refuses a field that would change the output.

        Raises:
            UnsupportedModel: the reading is strict.
        """
        if not self.lossy:
            raise UnsupportedModel(
                f"{section.file}: {section.field(name)} is {section.brief(name)}",
                why=why,
                fix="Read the package lossily (--lossy) to go on without it",
            )
        self.losses.append(Ignored(section.evidence(name), section.brief(name), why))

    def ignore(self, section: Section, name: str, why: str) -> None:
        """Notes a field that changes no output, if it is there."""
        if name in section:
            self.ignored.append(Ignored(section.evidence(name), section.brief(name), why))


def required_text(section: Section, name: str) -> str:
    """Returns a text that must be there and not be empty.

    Raises:
        InvalidPackage: it is not.
    """
    value = section.text(name)
    if not value:
        raise section.wrong(name, "it is missing" if value is None else "it is empty")
    return value


def one_of(section: Section, name: str, allowed: Collection[str]) -> str | None:
    """Returns a text of a closed vocabulary, or None where it is absent.

    Raises:
        InvalidPackage: another text.
    """
    value = section.text(name)
    if value is not None and value not in allowed:
        raise section.wrong(name, f"{value!r} is not one of {', '.join(sorted(allowed))}")
    return value
