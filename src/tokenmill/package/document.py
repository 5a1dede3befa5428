"""A JSON file of a package, read field by field; what nobody asked for can be listed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenmill.core.errors import InvalidPackage

_FIX = "Correct the file, or export the package again"


class Section:
    """An object of a JSON file, with typed access to its fields.

    Every accessor returns None where the field is absent or null, and raises `InvalidPackage`
    naming file and field where it has another type. A field that was asked for counts as used.

    Attributes:
        file: the JSON file.
        path: of this object inside it, e.g. "model.decoder"; "" for the whole file.
    """

    def __init__(self, file: Path, path: str, values: Mapping[str, Any]) -> None:
        self.file, self.path = file, path
        self._values = values
        self._used: set[str] = set()
        self._sections: dict[str, Section] = {}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def has_null(self, name: str) -> bool:
        """Returns whether the field is there and null."""
        return name in self._values and self._values[name] is None

    def field(self, name: str) -> str:
        """Returns a field's full name, e.g. "model.decoder.filename"."""
        return f"{self.path}.{name}" if self.path else name

    def evidence(self, name: str) -> str:
        """Returns file and field, e.g. "genai_config.json model.decoder.filename"."""
        return f"{self.file.name} {self.field(name)}"

    def wrong(self, name: str, why: str, fix: str = _FIX) -> InvalidPackage:
        """Returns the error for a field with a value that cannot be used."""
        return InvalidPackage(f"{self.file}: {self.field(name)}", why=why, fix=fix)

    def raw(self, name: str) -> Any:
        """Returns the field as it is."""
        self._used.add(name)
        return self._values.get(name)

    def section(self, name: str) -> Section:
        """Returns the object in that field; an empty one where it is absent."""
        if name not in self._sections:
            value = self.raw(name)
            if value is not None and not isinstance(value, dict):
                raise self.wrong(name, f"{_brief(value)} is not an object")
            self._sections[name] = Section(self.file, self.field(name), value or {})
        return self._sections[name]

    def text(self, name: str) -> str | None:
        """Returns a string."""
        value = self.raw(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, f"{_brief(value)} is not a string")

    def boolean(self, name: str) -> bool | None:
        """Returns true or false."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, f"{_brief(value)} is not true or false")

    def integer(self, name: str, low: int = 0, high: int = 2**31 - 1) -> int | None:
        """Returns a whole number from `low` to `high`."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"{_brief(value)} is not a whole number")
        if not low <= value <= high:
            raise self.wrong(name, f"{_brief(value)} is not from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Returns a number from `low` to `high`."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, f"{_brief(value)} is not a number")
        if not low <= value <= high:
            raise self.wrong(name, f"{_brief(value)} is not from {low} to {high}")
        return float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns a whole number or a list of them, as a tuple; empty where it is absent."""
        value = self.raw(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        for item in values:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self.wrong(name, f"{_brief(item)} is not a whole number")
        return tuple(values)

    def strings(self, name: str) -> dict[str, str]:
        """Returns an object of strings, numbers and truth values, each as text."""
        section = self.section(name)
        out = {}
        for key, value in section._values.items():
            if not isinstance(value, (str, int, float)):
                raise section.wrong(key, f"{_brief(value)} is not a string, number or truth value")
            out[key] = value if isinstance(value, str) else json.dumps(value)
        section._used.update(section._values)
        return out

    def names(self) -> tuple[str, ...]:
        """Returns the names of the fields that are there and not null, in order."""
        return tuple(name for name, value in self._values.items() if value is not None)

    def children(self, name: str) -> tuple[Section, ...]:
        """Returns a list of objects; empty where it is absent."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.wrong(name, f"{_brief(value)} is not a list")
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.wrong(f"{name}[{index}]", f"{_brief(item)} is not an object")
        return tuple(
            Section(self.file, f"{self.field(name)}[{index}]", item)
            for index, item in enumerate(value)
        )

    def text_list(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings; empty where it is absent."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.wrong(name, f"{_brief(value)} is not a list")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise self.wrong(f"{name}[{index}]", f"{_brief(item)} is not a string")
        return tuple(value)

    def brief(self, name: str) -> str:
        """Returns the field as JSON, cut where it is long."""
        return _brief(self.raw(name))

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields name and value of the fields that hold strings; none of them counts as used."""
        for name, value in self._values.items():
            if isinstance(value, str):
                yield name, value

    def unused(self) -> Iterator[tuple[str, str]]:
        """Yields the fields that nobody asked for: full name, and value in brief."""
        for name, value in self._values.items():
            if name in self._sections:
                yield from self._sections[name].unused()
            elif name not in self._used and value is not None:
                yield self.field(name), _brief(value)


def read_document(file: Path) -> Section:
    """Reads a JSON file that holds one object.

    Raises:
        InvalidPackage: it cannot be read, is not JSON, or holds something else.
    """
    text = read_text(file)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise not_json(file, error) from None
    if not isinstance(value, dict):
        raise InvalidPackage(f"{file}", why=f"it holds {_brief(value)}, not an object", fix=_FIX)
    check_text(file, value)
    return Section(file, "", value)


def read_head(file: Path, wanted: frozenset[str]) -> Section:
    """Reads fields of a large JSON object and stops as soon as it has them all.

    A tokenizer's vocabulary, the bulk of its file, stands last and is not parsed then.

    Raises:
        InvalidPackage: it cannot be read, or is not JSON as far as it was read.
    """
    text = read_text(file)
    decoder = json.JSONDecoder()
    values: dict[str, Any] = {}
    try:
        position = _expect(text, "{", 0)
        while not wanted <= values.keys() and text[_skip(text, position)] != "}":
            key, position = decoder.raw_decode(text, _skip(text, position))
            if not isinstance(key, str):
                raise ValueError(f"a key is {_brief(key)}, not a string")
            position = _skip(text, _expect(text, ":", position))
            value, position = decoder.raw_decode(text, position)
            if key in wanted:
                values[key] = value
            position = _skip(text, position)
            if text[position] == "}":
                break
            position = _expect(text, ",", position)
    except (ValueError, IndexError, RecursionError) as error:
        raise not_json(file, error) from None
    check_text(file, values)
    return Section(file, "", values)


def read_text(file: Path) -> str:
    """Reads a text file of a package.

    Raises:
        InvalidPackage: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidPackage(f"cannot read {file}", why=error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise InvalidPackage(f"{file} is not UTF-8", why=str(error), fix=_FIX) from None


def check_text(file: Path, value: object) -> None:
    """Checks that all texts in a value are whole: an escape may stand for half a character.

    Raises:
        InvalidPackage: one is not; no file could have that name, and no terminal could show it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        why = f"a text holds {half!r}, half of a surrogate pair"
        raise InvalidPackage(f"{file} is not valid", why=why, fix=_FIX) from None


def not_json(file: Path, error: Exception) -> InvalidPackage:
    """Returns the error for a file that does not parse."""
    why = "it is cut off" if isinstance(error, IndexError) else str(error)
    return InvalidPackage(f"{file} is not valid JSON", why=why, fix=_FIX)


def _skip(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _expect(text: str, mark: str, position: int) -> int:
    position = _skip(text, position)
    if text[position] != mark:
        raise ValueError(f"{mark!r} expected at character {position}")
    return position + 1


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
