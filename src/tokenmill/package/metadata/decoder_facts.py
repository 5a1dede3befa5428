"""What a document says of a decoder's ports and state, whichever way it says it."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.package.document import Section
from tokenmill.package.roles import Declaration


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """A decoder's ports and state as declared.

    Attributes:
        section: where they are declared, for messages.
        declared: roles of ports.
        capacity: (tokens of a static cache, the field that says so), or None.
        must_share: the field that demands past and present in one buffer, or None.
        slides: the field that says that a layer looks back at a window only, or None.
    """

    section: Section
    declared: tuple[Declaration, ...]
    capacity: tuple[int, Section, str] | None = None
    must_share: tuple[Section, str] | None = None
    slides: tuple[Section, str] | None = None

    @property
    def settle(self) -> str:
        """File and field that would settle an ambiguity."""
        return f"{self.section.file.name} {self.section.path}"
