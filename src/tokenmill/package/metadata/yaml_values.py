"""Plain values from YAML that nobody vouches for: no tags, no dates, no bombs, no surprises.

Plain scalars mean what YAML 1.2's core schema says (so `no` is a text and `1e-5` a number),
because that is what the writers of these documents use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_VALUES = 500_000
"""Of the whole document, every use of an alias counted in full."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False}
_BOOLEAN |= {"FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}\Z")
_BASED = re.compile(r"0(?:o[0-7]{1,40}|x[0-9a-fA-F]{1,40})\Z")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,5})?\Z"
)
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")


class YamlProblem(Exception):
    """What is wrong, and where.

    Attributes:
        path: of the field, e.g. "model.io.kv_inputs[3]"; "" for the whole document.
        why: the cause, with the line.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


class _Anchored(NamedTuple):
    value: Any
    depth: int
    size: int


def read_yaml(text: str) -> Any:
    """Returns the one document's value: mappings, lists, texts, numbers, truth values, None.

    Aliases are resolved to the very value of their anchor. Keys are texts, as they are written.

    Raises:
        YamlProblem: it is no YAML, holds several documents, a tag, a key twice, an alias of
            something that is not complete, or more than the limits of this module allow.
    """
    try:
        return _Builder(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlProblem("", f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlProblem("", " ".join(str(error).split())) from None


class _Builder:
    """Builds values from the events of one document, one event at a time."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, _Anchored] = {}
        self._path: list[str] = []
        self._depth = self._deepest = self._size = 0

    def document(self) -> Any:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events))
        next(self._events)
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._wrong(event, "a second document begins; there must be one")
        return value

    def _value(self, event: Any) -> Any:
        self._count(event, 1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None:
            raise self._wrong(event, f"the tag {event.tag!r} is not allowed")
        before, deepest = self._size, self._deepest
        self._deepest = self._depth
        if isinstance(event, yaml.ScalarEvent):
            value: Any = self._scalar(event)
        else:
            self._enter(event)
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            value = self._mapping() if is_mapping else self._sequence()
            self._depth -= 1
        if event.anchor is not None:
            depth, size = self._deepest - self._depth, self._size - before + 1
            self._anchors[event.anchor] = _Anchored(value, depth, size)
        self._deepest = max(deepest, self._deepest)
        return value

    def _alias(self, event: Any) -> Any:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            why = f"the alias {event.anchor!r} stands for nothing that is complete before it"
            raise self._wrong(event, why)
        self._count(event, anchored.size)
        depth = self._depth + anchored.depth
        self._check_depth(event, depth)
        self._deepest = max(self._deepest, depth)
        return anchored.value

    def _enter(self, event: Any) -> None:
        self._depth += 1
        self._check_depth(event, self._depth)
        self._deepest = max(self._deepest, self._depth)

    def _mapping(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            self._path.append(f".{key}")
            if key in out:
                raise self._wrong(event, "the field is there twice")
            out[key] = self._value(next(self._events))
            self._path.pop()
        return out

    def _sequence(self) -> list[Any]:
        out: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._path.append(f"[{len(out)}]")
            out.append(self._value(event))
            self._path.pop()
        return out

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise self._wrong(event, "a field's name is not a plain text")
        self._count(event, 1)
        if event.value == "<<" and event.implicit[0]:
            raise self._wrong(event, "merge keys (<<) are not read; write the fields out")
        name = str(event.value)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(name, 0, 1)
        return name

    def _scalar(self, event: Any) -> Any:
        text = str(event.value)
        if not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _BOOLEAN:
            return _BOOLEAN[text]
        if _INTEGER.match(text):
            return int(text)
        if _BASED.match(text):
            return int(text, 0)
        if _FLOAT.match(text):
            number = float(text)
            if math.isfinite(number):
                return number
        elif not _NOT_FINITE.match(text):
            return text
        raise self._wrong(event, f"{text} is not a finite number")

    def _count(self, event: Any, values: int) -> None:
        self._size += values
        if self._size > MAX_VALUES:
            raise self._wrong(event, f"with its aliases it holds more than {MAX_VALUES} values")

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._wrong(event, f"it is nested more than {MAX_DEPTH} deep")

    def _wrong(self, event: Any, why: str) -> YamlProblem:
        path = "".join(self._path).removeprefix(".")
        shown = path if len(path) <= 200 else path[:200] + "..."
        return YamlProblem(shown, f"line {event.start_mark.line + 1}: {why}")
