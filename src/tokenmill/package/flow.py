"""A graph as values that flow from operator to operator, through the branches of an If, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.onnx_file import Initializer, Node, OnnxFile

MAX_STEPS = 500_000
"""Of one `Flow`, from value to value. A decoder of thirty layers, exported in small operators,
takes 10,000; the bound keeps hostile graphs from taking hours."""


class Value(NamedTuple):
    """A tensor: its name, and the number of the graph that makes it (see `Node.scope`)."""

    scope: int
    name: str


class Use(NamedTuple):
    """A place where a value is read: the node's place in `OnnxFile.nodes`, and its input."""

    place: int
    node: Node
    slot: int


class Made(NamedTuple):
    """A place where a value is made: the node's place in `OnnxFile.nodes`, and its output."""

    place: int
    node: Node
    slot: int


class Flow:
    """Who makes and who reads each value of a graph.

    A value that a branch of an If returns is the If's own output under another name; both
    directions step over that. Other operators with subgraphs (Loop, Scan) are not looked into.
    """

    def __init__(self, graph: OnnxFile) -> None:
        self.graph = graph
        self._left = MAX_STEPS
        self.inputs = {port.name: port for port in graph.inputs}
        self._weights = {tensor.name: tensor for tensor in graph.initializers}
        self._parents: dict[int, int] = {}
        self._makers: dict[Value, Made] = {}
        self._formal: set[Value] = set()
        for index, node in enumerate(graph.nodes):
            for branch in node.branches:
                self._parents[branch.scope] = node.scope
                self._formal.update(Value(branch.scope, name) for name in branch.inputs)
            for slot, name in enumerate(node.outputs):
                self._makers[Value(node.scope, name)] = Made(index, node, slot)
        self._uses: dict[Value, list[Use]] = {}
        self._returned: dict[Value, list[Value]] = {}
        for index, node in enumerate(graph.nodes):
            for slot, name in enumerate(node.inputs):
                if name:
                    use = Use(index, node, slot)
                    self._uses.setdefault(self.value(node.scope, name), []).append(use)
            for branch in node.branches if node.operator == "If" else ():
                for inner, outer in zip(branch.outputs, node.outputs, strict=False):
                    source = self.value(branch.scope, inner)
                    self._returned.setdefault(source, []).append(Value(node.scope, outer))

    def value(self, scope: int, name: str) -> Value:
        """Returns what a name means inside a graph: branches see the values around them."""
        while scope:
            here = Value(scope, name)
            if here in self._makers or here in self._formal:
                return here
            scope = self._parents.get(scope, 0)
        return Value(0, name)

    def operand(self, node: Node, slot: int) -> Value | None:
        """Returns what a node reads there; None where it reads nothing."""
        if slot >= len(node.inputs) or not node.inputs[slot]:
            return None
        return self.value(node.scope, node.inputs[slot])

    def maker(self, value: Value) -> Made | None:
        """Returns who makes a value; None for inputs and weights."""
        return self._makers.get(value)

    def forward(self, start: Value, passes: Callable[[Use], bool]) -> Iterator[Use]:
        """Yields every use of a value, and of what nodes make of it where `passes` allows."""
        seen, queue = {start}, deque([start])
        while queue:
            value = queue.popleft()
            self._step()
            following = list(self._returned.get(value, ()))
            for use in self._uses.get(value, ()):
                self._step()
                yield use
                if passes(use):
                    following += [Value(use.node.scope, name) for name in use.node.outputs if name]
            for other in following:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)

    def backward(self, start: Value, passes: Callable[[Made], Sequence[int]]) -> Iterator[Value]:
        """Yields a value and what it was made of.

        Args:
            passes: the inputs of a node to go on to; none ends the way there.
        """
        seen, queue = {start}, deque([start])
        while queue:
            value = queue.popleft()
            self._step()
            yield value
            made = self.maker(value)
            if made is None:
                continue
            sources = list(self._returning(made))
            sources += [self.operand(made.node, slot) for slot in passes(made)]
            for other in sources:
                if other is not None and other not in seen:
                    seen.add(other)
                    queue.append(other)

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnsupportedModel(
                f"{self.graph.path.name} is too tangled to tell what its ports are for",
                why=f"following its {len(self.graph.nodes)} operators takes more than {MAX_STEPS} "
                "steps",
            )

    def origins(self, value: Value, through: Collection[str]) -> Iterator[Value]:
        """Yields where a value comes from, before operators that keep its content."""
        for origin in self.backward(value, lambda made: _first(made, through)):
            made = self.maker(origin)
            if made is None or not (made.node.operator in through or made.node.operator == "If"):
                yield origin

    def weight(self, value: Value | None, through: Collection[str]) -> Initializer | None:
        """Returns the weight that a value is, after operators that keep its content."""
        if value is None:
            return None
        for origin in self.origins(value, through):
            if self.maker(origin) is None and origin.name in self._weights:
                return self._weights[origin.name]
        return None

    def is_constant(self, value: Value | None) -> bool:
        """Returns whether a value is a weight, or one in another shape or type."""
        if value is None:
            return False
        origins = list(self.origins(value, KEEPING))
        return bool(origins) and all(self._is_given(origin) for origin in origins)

    def _is_given(self, value: Value) -> bool:
        made = self.maker(value)
        if made is None:
            return value.name not in self.inputs and value not in self._formal
        return made.node.operator in ("Constant", "ConstantOfShape")

    def _returning(self, made: Made) -> Iterator[Value | None]:
        if made.node.operator == "If":
            for branch in made.node.branches:
                if made.slot < len(branch.outputs):
                    yield self.value(branch.scope, branch.outputs[made.slot])


def _first(made: Made, through: Collection[str]) -> tuple[int, ...]:
    return (0,) if made.node.operator in through else ()


RESHAPING = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})
"""Operators that keep all numbers (a Cast: as far as the type holds them) in their order."""

KEEPING = RESHAPING | {
    "CastLike",
    "DequantizeLinear",
    "Expand",
    "QuantizeLinear",
    "Transpose",
}
"""Operators whose first input's numbers are all still there."""


def is_product(operator: str) -> bool:
    """Returns whether an operator is a matrix product of some kind."""
    return "MatMul" in operator or operator in ("Gemm", "Einsum")


def is_softmax(operator: str) -> bool:
    """Returns whether an operator ends in a softmax."""
    return operator.endswith("Softmax")
