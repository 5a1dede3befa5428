"""What the scheduler has decided and the engine carries out, in order."""

from __future__ import annotations

from typing import NamedTuple

from tokenmill.scheduler.sequence import Sequence


class Start(NamedTuple):
    """A waiting sequence gets a row, and room for so many tokens."""

    sequence: Sequence
    length: int


class Grow(NamedTuple):
    """A running sequence gets room for so many tokens."""

    sequence: Sequence
    length: int


class Park(NamedTuple):
    """A running sequence gives up its row, and waits again.

    Attributes:
        keeps: its state is copied aside; else it is computed again when it resumes.
    """

    sequence: Sequence
    keeps: bool


class Drop(NamedTuple):
    """The copy of a parked sequence's state is given up; it will be computed again."""

    sequence: Sequence


class Refuse(NamedTuple):
    """A waiting sequence does not fit any more, not even alone: the budget became smaller."""

    sequence: Sequence


Action = Start | Grow | Park | Drop | Refuse
