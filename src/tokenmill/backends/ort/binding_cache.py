"""The bindings used last, since making one takes longer than all else that Python does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_KEPT = 16

Binding = TypeVar("Binding")


class BindingCache(Generic[Binding]):
    """Keeps bindings by their rows and width.

    Args:
        make: returns a binding for a range of rows of so many new tokens each.
    """

    def __init__(self, make: Callable[[range, int], Binding]) -> None:
        self._make = make
        self._bindings: OrderedDict[tuple[int, int, int], Binding] = OrderedDict()

    def get(self, rows: range, width: int) -> Binding:
        """Returns the binding for rows of `width` new tokens each."""
        key = rows.start, rows.stop, width
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._make(rows, width)
            self._bindings[key] = binding
            if len(self._bindings) > _KEPT:
                self._bindings.popitem(last=False)
        else:
            self._bindings.move_to_end(key)
        return binding

    def clear(self) -> None:
        """Forgets all of them: they are bound to memory that is no longer used."""
        self._bindings.clear()
