"""A prompt's text, cut where its control tokens stand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of a prompt.

    Attributes:
        text: as the user should see it.
        is_control: whether the text is one control token; else all of it is ordinary text, even
            what looks like a control token.
    """

    text: str
    is_control: bool


def control_extents(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """Returns begin and end of each control span in the joined text, in characters."""
    extents: list[tuple[int, int]] = []
    end = 0
    for span in spans:
        start, end = end, end + len(span.text)
        if span.is_control:
            extents.append((start, end))
    return extents


@lru_cache(maxsize=64)
def control_pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """Matches any of the tokens, of two at one place the longer. Without tokens, nothing."""
    longest_first = sorted((token for token in tokens if token), key=lambda t: (-len(t), t))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def split_at_control_tokens(text: str, tokens: Iterable[str]) -> list[Span]:
    """Cuts a text at the control tokens in it; the spans join to the text, none is empty."""
    spans: list[Span] = []
    end = 0
    for match in control_pattern(frozenset(tokens)).finditer(text):
        if match.start() > end:
            spans.append(Span(text[end : match.start()], False))
        spans.append(Span(match[0], True))
        end = match.end()
    if end < len(text):
        spans.append(Span(text[end:], False))
    return spans
