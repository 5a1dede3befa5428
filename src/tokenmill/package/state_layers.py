"""Pairs of state ports put into layers: keys with their values, in the order of execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.flow import Flow
from tokenmill.package.state_pairs import (
    KEY,
    STATE_DTYPES,
    VALUE,
    StatePair,
    find_pairs,
    half_by_name,
    number_in,
)


class StateLayer(NamedTuple):
    """The state of one layer."""

    key: StatePair
    value: StatePair


def find_layers(flow: Flow, settle: str) -> tuple[StateLayer, ...]:
    """Returns the state of a graph by layer, from its operators; from names where those are mute.

    Args:
        settle: file and field that would settle an ambiguity, for messages.

    Raises:
        InvalidPackage: pairs of which nothing tells whether they are keys or values, or of which
            layer; or names whose numbers contradict what the operators do.
    """
    pairs = find_pairs(flow)
    pairs += _named_pairs(flow, pairs)
    if all(pair.half is not None and pair.anchor is not None for pair in pairs):
        layers = _by_anchor(flow, pairs, settle)
    else:
        layers = _by_name(flow, pairs, settle)
    _check_numbers(flow, layers, settle)
    return layers


def _named_pairs(flow: Flow, known: Sequence[StatePair]) -> list[StatePair]:
    """Pairs inputs and outputs by the half and the number in their names, where that is unique."""
    taken = {name for pair in known for name in (pair.past, pair.present, *pair.repeats)}
    wanted: dict[tuple[str, int], list[str]] = {}
    for port in flow.graph.outputs:
        half, number = half_by_name(port.name), number_in(port.name)
        if half and number is not None and len(port.shape) > 2 and port.name not in taken:
            wanted.setdefault((half, number), []).append(port.name)
    out = []
    for port in flow.graph.inputs:
        half, number = half_by_name(port.name), number_in(port.name)
        if half is None or number is None or len(port.shape) < 3 or port.name in taken:
            continue
        found = wanted.get((half, number), [])
        if len(found) == 1 and port.dtype in STATE_DTYPES:
            why = f"names: {half} {number} of both"
            out.append(StatePair(port.name, found[0], None, None, None, None, why))
    return out


def _by_anchor(flow: Flow, pairs: Sequence[StatePair], settle: str) -> tuple[StateLayer, ...]:
    anchors: dict[int, list[StatePair]] = {}
    for pair in pairs:
        assert pair.anchor is not None, "the caller has checked it"
        anchors.setdefault(pair.anchor, []).append(pair)
    layers = []
    for anchor in sorted(anchors):
        halves = {pair.half: pair for pair in anchors[anchor]}
        if len(anchors[anchor]) != 2 or set(halves) != {KEY, VALUE}:
            names = ", ".join(repr(pair.past) for pair in anchors[anchor])
            raise InvalidPackage(
                f"the state of {flow.graph.path.name} does not pair up",
                why=f"one attention reads {names}: not one key and one value",
                fix=f"Say what each port is in {settle}",
            )
        layers.append(StateLayer(halves[KEY], halves[VALUE]))
    return tuple(layers)


def _by_name(flow: Flow, pairs: Sequence[StatePair], settle: str) -> tuple[StateLayer, ...]:
    layers: dict[int, dict[str, StatePair]] = {}
    for pair in pairs:
        half, number = pair.half or half_by_name(pair.past), number_in(pair.past)
        if half is None or number is None or half in layers.get(number, {}):
            told = "whether it is a key or a value" if half is None else "of which layer it is"
            raise InvalidPackage(
                f"the input {pair.past!r} of {flow.graph.path.name} is state",
                why=f"neither its operators nor its name tell {told}",
                fix=f"Say it in {settle}",
            )
        layers.setdefault(number, {})[half] = pair
    for number, halves in layers.items():
        if len(halves) != 2:
            (half,) = halves
            raise InvalidPackage(
                f"the state of {flow.graph.path.name} does not pair up",
                why=f"layer {number} has the {half} {halves[half].past!r} only",
                fix=f"Say what each port is in {settle}",
            )
    return tuple(StateLayer(layers[n][KEY], layers[n][VALUE]) for n in sorted(layers))


def _check_numbers(flow: Flow, layers: Sequence[StateLayer], settle: str) -> None:
    """Holds the numbers in names against the order of execution: they must grow with it."""
    for half in (0, 1):
        for kind in ("past", "present"):
            names = [getattr(layer[half], kind) for layer in layers]
            numbers = [number_in(name) for name in names]
            told = [number for number in numbers if number is not None]
            if len(told) < len(numbers):
                continue
            for index in range(1, len(told)):
                if told[index] <= told[index - 1]:
                    raise InvalidPackage(
                        f"the ports {names[index - 1]!r} and {names[index]!r} of "
                        f"{flow.graph.path.name}",
                        why="their numbers contradict the order in which the layers run",
                        fix=f"Say in {settle} which layer each is of, or export again",
                    )
    for layer in layers:
        for pair in layer:
            past, present = number_in(pair.past), number_in(pair.present)
            if None not in (past, present) and past != present and _speaks_of_state(pair):
                raise InvalidPackage(
                    f"the ports {pair.past!r} and {pair.present!r} of {flow.graph.path.name}",
                    why="one continues the other, and their numbers differ",
                    fix=f"Say in {settle} which belong together, or export again",
                )


def _speaks_of_state(pair: StatePair) -> bool:
    return half_by_name(pair.past) is not None and half_by_name(pair.present) is not None
