"""Typed access to a GGUF file's metadata, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.reader import Value

T = TypeVar("T")


def _wrong(key: str, value: Value, wanted: str) -> InvalidPackage:
    shown = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
    return InvalidPackage(f"the GGUF key {key!r} is {shown}", why=f"{wanted} is needed")


def missing(key: str) -> InvalidPackage:
    """The error for a required key that is not there."""
    return InvalidPackage(f"the GGUF file has no key {key!r}", why="the import needs it")


class Metadata:
    """A view of the metadata by type. `get_*` returns None where the key is not there."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def with_prefix(self, prefix: str) -> dict[str, Value]:
        """Returns the entries under a prefix, which their keys lose."""
        return {
            key[len(prefix) :]: value
            for key, value in self._values.items()
            if key.startswith(prefix)
        }

    def get_text(self, key: str) -> str | None:
        """Returns a string."""
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise _wrong(key, value, "a string")

    def get_bool(self, key: str) -> bool | None:
        """Returns a boolean."""
        value = self._values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise _wrong(key, value, "a boolean")

    def get_int(self, key: str) -> int | None:
        """Returns an integer; a list whose elements are all equal counts as one."""
        value = self._single(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _wrong(key, value, "an integer")

    def get_float(self, key: str) -> float | None:
        """Returns a number; a list whose elements are all equal counts as one."""
        value = self._single(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise _wrong(key, value, "a number")

    def get_texts(self, key: str) -> list[str] | None:
        """Returns a list of strings."""
        return self._list(key, str, "a list of strings")

    def get_ints(self, key: str) -> list[int] | None:
        """Returns a list of integers."""
        return self._list(key, int, "a list of integers")

    def get_floats(self, key: str) -> list[float] | None:
        """Returns a list of numbers."""
        return self._list(key, float, "a list of numbers")

    def text(self, key: str) -> str:
        """Returns a required string."""
        value = self.get_text(key)
        if value is None:
            raise missing(key)
        return value

    def positive(self, key: str) -> int:
        """Returns a required integer above zero."""
        value = self.get_int(key)
        if value is None:
            raise missing(key)
        if value <= 0:
            raise _wrong(key, value, "a positive integer")
        return value

    def _single(self, key: str) -> Value | None:
        value = self._values.get(key)
        if not isinstance(value, list):
            return value
        if value and all(element == value[0] for element in value):
            return value[0]
        raise UnsupportedModel(
            f"the GGUF key {key!r} differs between layers",
            why="only models whose layers are alike are supported",
        )

    def _list(self, key: str, kind: type[T], wanted: str) -> list[T] | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, list):
            elements: list[T] = [element for element in value if isinstance(element, kind)]
            if len(elements) == len(value):
                return elements
        raise _wrong(key, value, wanted)
