"""Where a value of a workflow comes from, through everything that does not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tokenmill.package.metadata.ssa import all_steps
from tokenmill.package.metadata.steps import Invoke, Loop
from tokenmill.package.metadata.workflow import Workflow
from tokenmill.package.onnx_file import OnnxFile

_MOVES = frozenset(
    {
        "Cast",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Unsqueeze",
    }
)
"""Operators that pick or arrange elements of their first input and compute none."""


class Source(NamedTuple):
    """What defines a value: a port of a component, or (component None) an input or count."""

    component: str | None
    name: str


class ValueFlow:
    """Answers where values come from.

    Args:
        workflow: with values that are defined and read in order.
        through: for a port of a component that only passes one of its inputs on, that input;
            None for all others.
    """

    def __init__(self, workflow: Workflow, through: Callable[[str, str], str | None]) -> None:
        self._through = through
        self._producers: dict[str, tuple[Invoke, str]] = {}
        self._carried: dict[str, tuple[str, ...]] = {}
        for step in all_steps(workflow.steps):
            if isinstance(step, Invoke):
                self._producers.update(
                    (value, (step, port)) for port, value in step.outputs.items()
                )
            elif isinstance(step, Loop):
                for carry in step.carried:
                    first = carry.initial or workflow.cells[carry.cell].initializer
                    self._carried[carry.cell] = (first, carry.next)

    def sources(self, value: str) -> Iterator[Source]:
        """Yields what a value can be, each source once."""
        pending, seen = [value], {value}
        while pending:
            name = pending.pop()
            following: tuple[str, ...] = ()
            if name in self._carried:
                following = self._carried[name]
            elif name in self._producers:
                invoke, port = self._producers[name]
                passed = self._through(invoke.component, port)
                if passed is None or passed not in invoke.inputs:
                    yield Source(invoke.component, port)
                else:
                    following = (invoke.inputs[passed],)
            else:
                yield Source(None, name)
            pending.extend(one for one in following if one not in seen)
            seen.update(following)


def moved_input(graph: OnnxFile, output: str) -> str | None:
    """Returns the input of which an output holds elements, unchanged; None where it computes."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    inputs = {port.name for port in graph.inputs}
    name = output
    for _ in range(len(graph.nodes) + 1):
        if name in inputs:
            return name
        node = makers.get(name)
        if node is None or node.operator not in _MOVES or not node.inputs:
            return None
        name = node.inputs[0]
    return None
