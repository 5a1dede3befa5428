"""Stop texts: where an output ends because of what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenmill.core.errors import InvalidRequest


class StopOutcome(NamedTuple):
    """What a step of an output shows.

    Attributes:
        text: to be shown now; "" where all of it is held back.
        stopped: the stop text that the output ended with, or None.
    """

    text: str
    stopped: str | None


class StopMatcher:
    """Finds the first stop text in an output that arrives in parts.

    Text that may be the beginning of a stop text is held back, the longest such end of the text
    and no more, until it is decided; each character is released once. The match that is complete
    first wins, of two that end together the longer, so the result does not depend on where the
    text is cut.

    Args:
        stops: the stop texts.
        include_stop: show the stop text too.

    Raises:
        InvalidRequest: a stop text is empty.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        for index, stop in enumerate(stops):
            if not stop:
                raise InvalidRequest(
                    f"stop[{index}] is empty",
                    why="an empty text stands everywhere",
                    fix="Leave it out",
                )
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop text that was found, or None."""
        return self._stopped

    def push(self, delta: str) -> StopOutcome:
        """Takes the next text and says what to show. After a stop nothing is shown any more."""
        if self._stopped is not None:
            return StopOutcome("", self._stopped)
        if not self._stops:
            return StopOutcome(delta, None)
        text = self._held + delta
        match = self._find(text)
        if match is not None:
            start, stop = match
            self._held, self._stopped = "", stop
            return StopOutcome(
                text[: start + len(stop)] if self._include_stop else text[:start], stop
            )
        keep = self._undecided(text)
        self._held = text[keep:]
        return StopOutcome(text[:keep], None)

    def would_stop(self, delta: str) -> bool:
        """Whether `push(delta)` would find a stop text; changes nothing."""
        return self._stopped is None and self._find(self._held + delta) is not None

    def flush(self) -> str:
        """Returns what was held back, since the output ends without a stop text."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else (best[1], best[2])

    def _undecided(self, text: str) -> int:
        """Returns where the longest end of the text begins that a stop text may begin with."""
        earliest = len(text)
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= start < earliest:
                if stop.startswith(text[start:]):
                    earliest = start
                    break
                start = text.find(stop[0], start + 1)
        return earliest
