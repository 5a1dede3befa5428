"""Which outputs continue which inputs: the state of attention, from the operators themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tokenmill.package.flow import KEEPING, Flow, Made, Use, Value, is_product, is_softmax
from tokenmill.package.onnx_file import Node

KEY, VALUE = "key", "value"
GROUP_QUERY = "com.microsoft.GroupQueryAttention"
MULTI_HEAD = "com.microsoft.MultiHeadAttention"
MASKED_MULTI_HEAD = "com.microsoft.DecoderMaskedMultiHeadAttention"
ATTENTION = "Attention"
SCATTER = "TensorScatter"

FLOATS = ("float32", "float16", "bfloat16")
STATE_DTYPES = (*FLOATS, "int8", "uint8")


class _Slots(NamedTuple):
    """Where an operator takes the past key (the value follows it), and its new key."""

    past: int
    new: int


_OPERATORS: Mapping[str, _Slots] = {
    GROUP_QUERY: _Slots(3, 1),
    MULTI_HEAD: _Slots(6, 1),
    MASKED_MULTI_HEAD: _Slots(5, 1),
    ATTENTION: _Slots(4, 1),
}
"""All of them return the present key and value as outputs 1 and 2."""

_ENDS = frozenset({"ConstantOfShape", "If", "Loop", "NonZero", "Scan", "Shape", "Size"})
"""Operators behind which a tensor's numbers do not go on."""


@dataclass(frozen=True, slots=True)
class StatePair:
    """A graph's input and the output that continues it.

    Attributes:
        half: KEY or VALUE; None where the operators do not tell.
        anchor: index of the softmax or attention operator that reads it; None as above.
        node: the operator that makes the present of the past; None where that is not known.
        attention: the operator that reads keys or values, where there is one of that kind.
        why: the evidence, in one phrase.
        repeats: further outputs that carry the same tensor.
    """

    past: str
    present: str
    half: str | None
    anchor: int | None
    node: Node | None
    attention: Node | None
    why: str
    repeats: tuple[str, ...] = ()


def find_pairs(flow: Flow) -> list[StatePair]:
    """Returns all pairs that the graph's operators tell, in the order of its outputs.

    A past that two different tensors claim to continue is in no pair.
    """
    found: dict[str, StatePair] = {}
    sources: dict[str, set[Value]] = {}
    for port in flow.graph.outputs:
        if port.dtype not in STATE_DTYPES:
            continue
        pairs = list(_pairs_of(flow, port.name))
        if len({pair.past for pair, _ in pairs}) != 1:
            continue
        pair, source = pairs[0]
        sources.setdefault(pair.past, set()).add(source)
        before = found.get(pair.past)
        if before is None:
            found[pair.past] = pair
        else:
            found[pair.past] = replace(before, repeats=(*before.repeats, port.name))
    return [pair for past, pair in found.items() if len(sources[past]) == 1]


def _pairs_of(flow: Flow, output: str) -> Iterator[tuple[StatePair, Value]]:
    for origin in flow.origins(Value(0, output), KEEPING):
        made = flow.maker(origin)
        if made is None:
            continue
        slots = _OPERATORS.get(made.node.operator)
        if slots is not None and made.slot in (1, 2):
            past = _input(flow, flow.operand(made.node, slots.past + made.slot - 1))
            if past is not None:
                half = KEY if made.slot == 1 else VALUE
                why = f"structure: the past {half} of {_called(made.node)}"
                yield (
                    StatePair(past, output, half, made.place, made.node, made.node, why),
                    origin,
                )
        elif made.node.operator in ("Concat", SCATTER):
            past = _appended(flow, made)
            if past is not None:
                read = _read(flow, origin)
                how = "continued by" if made.node.operator == "Concat" else "written by"
                why = f"structure: {how} {_called(made.node)}"
                if read.half is not None:
                    why += f", read as {read.half}s"
                yield (
                    StatePair(past, output, read.half, read.anchor, made.node, read.attention, why),
                    origin,
                )


def _appended(flow: Flow, made: Made) -> str | None:
    """Returns the input that a Concat appends to, or that a TensorScatter writes into."""
    slots = [0] if made.node.operator == SCATTER else range(len(made.node.inputs))
    found = {_input(flow, flow.operand(made.node, slot)) for slot in slots}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _input(flow: Flow, value: Value | None) -> str | None:
    """Returns the graph's own input that a value is, if it is one that can be state."""
    if value is None:
        return None
    for origin in flow.origins(value, KEEPING):
        port = flow.inputs.get(origin.name)
        if flow.maker(origin) is None and port is not None and port.dtype in STATE_DTYPES:
            return port.name
    return None


class _Read(NamedTuple):
    half: str | None
    anchor: int | None
    attention: Node | None = None


def _read(flow: Flow, value: Value) -> _Read:
    """Returns how attention reads a tensor: as keys before a softmax or as values after it.

    Where several layers read it, the first of them counts.
    """
    found: set[tuple[int, str]] = set()
    operators: dict[int, Node] = {}
    for use in flow.forward(value, _goes_on):
        slots = _OPERATORS.get(use.node.operator)
        if slots is not None:
            if use.slot in (slots.new, slots.new + 1):
                found.add((use.place, KEY if use.slot == slots.new else VALUE))
                operators[use.place] = use.node
        elif is_product(use.node.operator) and use.slot < 2:
            found.update(_of_product(flow, use))
    if not found:
        return _Read(None, None)
    first = min(found)[0]
    halves = {half for anchor, half in found if anchor == first}
    if len(halves) > 1:
        return _Read(None, None)
    return _Read(halves.pop(), first, operators.get(first))


def _of_product(flow: Flow, use: Use) -> Iterator[tuple[int, str]]:
    """Yields (index of the softmax, half) for a product of queries or weights with a tensor."""
    other = flow.operand(use.node, 1 - use.slot)
    if other is not None:
        for value in flow.backward(other, _comes_from):
            made = flow.maker(value)
            if made is not None and is_softmax(made.node.operator):
                yield made.place, VALUE
                return
    for name in use.node.outputs:
        for after in flow.forward(Value(use.node.scope, name), _goes_on):
            if is_softmax(after.node.operator):
                yield after.place, KEY
                return


def _goes_on(use: Use) -> bool:
    operator = use.node.operator
    return not (
        operator in _ENDS or operator in _OPERATORS or is_product(operator) or is_softmax(operator)
    )


def _comes_from(made: Made) -> range:
    operator = made.node.operator
    stops = operator in _ENDS or is_product(operator) or is_softmax(operator)
    return range(0 if stops else len(made.node.inputs))


def _called(node: Node) -> str:
    operator = node.operator.removeprefix("com.microsoft.")
    return f"{operator} {node.name!r}" if node.name else operator


_KEY_WORDS = re.compile(r"(?:^|[^a-z])(?:keys?|k)(?:[^a-z]|$)")
_VALUE_WORDS = re.compile(r"(?:^|[^a-z])(?:values?|v)(?:[^a-z]|$)")


def half_by_name(name: str) -> str | None:
    """Returns the half that a port's name speaks of, e.g. KEY for "past_key_values.3.key"."""
    words = name.lower().replace("key_values", "")
    is_key, is_value = (bool(word.search(words)) for word in (_KEY_WORDS, _VALUE_WORDS))
    if is_key == is_value:
        return None
    return KEY if is_key else VALUE


def number_in(name: str) -> int | None:
    """Returns the one number in a port's name; None where there is none, or more than one."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) < 10 else None
