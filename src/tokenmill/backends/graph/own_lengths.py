"""Positions and sizes that were derived from mask and past come from lengths instead.

The past of a rewritten graph is a buffer: its size is a capacity, not a length. Whatever else
derives from it, or from the mask, must be a row's positions or one of the step's sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tokenmill.backends.graph.cases import SHORT, context_of, feeds, sizes_of
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.lengths import constants_of, places
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.names import drop_unused, inputs_of
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.ports import LENGTHS_INPUT, TOTAL_INPUT, DecoderPorts
from tokenmill.backends.graph.shape_rules import Shaped
from tokenmill.backends.graph.sites import Refused

_PREFIX = "tokenmill.lengths"
_GROUPED = "GroupQueryAttention"
_MAX_VALUES = 4096
_OF_SHAPES = {"Shape", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Cast", "Identity"}

Values = Sequence[NDArray[Any]]
"""A tensor's values in each of the cases."""

Late = Callable[[Case], NDArray[Any] | None]
"""Gives a tensor's value in any other case, None where it cannot be told."""


def use_lengths(model: ModelProto, ports: DecoderPorts, outside: OutsideWeights) -> tuple[str, ...]:
    """Replaces what is derived from the mask, or from the size of the past, outside attention.

    Adds the two inputs for lengths.

    Returns:
        What was replaced, a phrase each.

    Raises:
        Refused: something else is derived from them.
    """
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info(LENGTHS_INPUT, TensorProto.INT32, ["batch"]))
    graph.input.append(helper.make_tensor_value_info(TOTAL_INPUT, TensorProto.INT32, []))
    made = _Replacements(ports, places(constants_of(graph), context_of(ports)))
    notes: tuple[str, ...] = ()
    for what, replacement in (
        ("positions computed from lengths", made.positions),
        ("", made.size),
        ("", made.total),
    ):
        if next(_uses(graph, ports), None) is None:
            break
        if _replace_all(model, ports, outside, replacement, made) and what:
            notes = (*notes, what)
    for node, name in _uses(graph, ports):
        if name == ports.attention_mask:
            raise Refused(f"the mask is needed outside attention, by {_called(node)}")
        raise Refused(f"the length of {name!r} is needed outside attention, by {_called(node)}")
    return notes


def _called(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type


def _uses(graph: GraphProto, ports: DecoderPorts) -> Iterator[tuple[NodeProto, str]]:
    """Yields who reads the mask or the state, but for the attention that writes it in place."""
    sources = _sources(ports)
    for node in graph.node:
        names = node.input[5:] if node.op_type == _GROUPED else list(inputs_of(node))
        for name in names:
            if name in sources:
                yield node, name


def _sources(ports: DecoderPorts) -> set[str]:
    state = {name for layer in ports.state for name in (*layer.past, *layer.present)}
    return state if ports.attention_mask is None else state | {ports.attention_mask}


def _replace_all(
    model: ModelProto,
    ports: DecoderPorts,
    outside: OutsideWeights,
    replacement: Callable[[NodeProto, Values, Late], str | None],
    made: _Replacements,
) -> bool:
    """Replaces every derived tensor that `replacement` knows; returns whether one was."""
    graph = model.graph
    evaluator = Evaluator(model, outside)

    @cache
    def at(case: Case) -> Evaluation:
        return Evaluation(evaluator, feeds(graph, ports, case))

    evaluations = [at(case) for case in sizes_of(ports)]
    derived, renamed = _sources(ports), dict[str, str]()
    for node in graph.node:
        if node.op_type == _GROUPED or not any(name in derived for name in inputs_of(node)):
            continue
        for name in node.output:
            values = _values(evaluations, name)
            if values is None:
                continue
            derived.add(name)
            new = replacement(node, values, partial(_late, at, name))
            if new is not None:
                renamed[name] = new
    if not renamed:
        return False
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    graph.node.extend(made.take_nodes())
    graph.initializer.extend(made.take_constants())
    return not drop_unused(graph).isdisjoint(renamed.values())


def _values(evaluations: Sequence[Evaluation], name: str) -> list[NDArray[Any]] | None:
    found = []
    for number, evaluation in enumerate(evaluations):
        value = _value(evaluation, name)
        if value is None or (number < len(SHORT) and value.size > _MAX_VALUES):
            return None
        found.append(value)
    return found


def _late(at: Callable[[Case], Evaluation], name: str, case: Case) -> NDArray[Any] | None:
    return _value(at(case), name)


def _value(evaluation: Evaluation, name: str) -> NDArray[Any] | None:
    try:
        value = evaluation.get(name)
    except CannotEvaluate:
        return None
    return None if isinstance(value, Shaped) else value


class _Replacements:
    """Makes tensors that mean the same, from lengths. Each method returns a name, or None.

    Args:
        ports: of the graph.
        places: where else a tensor that seems to be one of these must be it.
    """

    def __init__(self, ports: DecoderPorts, places: Sequence[Case]) -> None:
        self._ports, self._sizes, self._places = ports, sizes_of(ports), places
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._made: dict[str, str] = {}

    def take_nodes(self) -> list[NodeProto]:
        """Returns the nodes made since the last call."""
        nodes, self._nodes = self._nodes, []
        # What was made before may be gone, where nothing needed it.
        self._made.clear()
        return nodes

    def take_constants(self) -> list[TensorProto]:
        """Returns the constants made since the last call."""
        constants, self._constants = self._constants, []
        return constants

    def positions(self, node: NodeProto, values: Values, late: Late) -> str | None:
        """Positions of the new tokens, [1 or batch, ..., new, ...] but for axes of 1."""
        first = values[0]
        if first.ndim < 2 or first.dtype.kind not in "if":
            return None
        offset = first.reshape(-1)[0] - SHORT[0].past
        axis = next((i for i, size in enumerate(first.shape) if size == SHORT[0].new), 0)
        if axis == 0 or offset != int(offset):
            return None

        def fits(case: Case, array: NDArray[Any] | None) -> bool:
            if array is None:
                return False
            rows = case.batch if array.shape[:1] == (case.batch,) else 1
            shape = tuple(
                rows if i == 0 else case.new if i == axis else 1 for i in range(first.ndim)
            )
            wanted = np.arange(case.past, case.total).reshape(
                [case.new if i == axis else 1 for i in range(first.ndim)]
            )
            return array.shape == shape and bool(np.all(array == wanted + offset))

        if not all(map(fits, self._sizes, values)):
            return None
        # A whole text in one step shows the position of each of its tokens.
        whole = Case(1, context_of(self._ports), 0)
        if not all(fits(case, late(case)) for case in (*self._places, whole)):
            return None
        return self._positions(first, axis, int(offset))

    def size(self, node: NodeProto, values: Values, late: Late) -> str | None:
        """The number of rows or of new tokens, or a size of the state that is no length."""
        if not _is_number(values):
            return None
        numbers = [int(value.reshape(-1)[0]) for value in values]
        for axis, wanted in enumerate(zip(*((c.batch, c.new) for c in self._sizes), strict=True)):
            if numbers == list(wanted) and self._are(late, itemgetter(axis)):
                sizes = self._node("Shape", [self._ports.input_ids], "sizes")
                picked = self._picked(sizes, axis, values[0])
                return self._typed(picked, values[0].dtype)
        is_one = node.op_type in _OF_SHAPES and len(set(numbers)) == 1
        if is_one and self._are(late, lambda case: numbers[0]):
            return self._constant(f"is_{numbers[0]}_{values[0].ndim}_{values[0].dtype}", values[0])
        return None

    def total(self, node: NodeProto, values: Values, late: Late) -> str | None:
        """The longest row's length: tables are cut to it, and each row has its own positions."""
        if not _is_number(values):
            return None
        numbers = [int(value.reshape(-1)[0]) for value in values]
        if numbers != [case.total for case in self._sizes]:
            return None
        if not self._are(late, lambda case: case.total):
            return None
        total = TOTAL_INPUT
        if values[0].ndim:
            total = self._node("Unsqueeze", [total, self._numbers([0])], "total.1")
        return self._typed(total, values[0].dtype)

    def _are(self, late: Late, wanted: Callable[[Case], int]) -> bool:
        """Whether a number is the wanted one all over the context."""
        values = ((late(case), wanted(case)) for case in self._places)
        return all(value is not None and value.tolist() in (n, [n]) for value, n in values)

    def _positions(self, like: NDArray[Any], axis: int, offset: int) -> str:
        minus_one = self._constant("minus_one", np.array(-1, np.int64))
        one = self._constant("one", np.array(1, np.int64))
        ends = self._node("Cast", [LENGTHS_INPUT], "ends", to=TensorProto.INT64)
        column = self._node("Unsqueeze", [ends, self._numbers([1])], "column")
        sizes = self._node("Shape", [self._ports.input_ids], "sizes")
        new = self._picked(sizes, 1, np.zeros((), np.int64))
        first = self._node("Add", [self._node("Mul", [new, minus_one], "back"), one], "first")
        steps = self._node("Range", [first, one, one], "steps")
        positions = self._node("Add", [column, steps], "positions")
        if offset:
            by = self._constant(f"by_{offset}", np.array(offset, np.int64))
            positions = self._node("Add", [positions, by], f"positions.{offset}")
        if like.ndim > 2:
            axes = [i for i in range(1, like.ndim) if i != axis]
            positions = self._node(
                "Unsqueeze", [positions, self._numbers(axes)], f"{positions}.{axis}.{like.ndim}"
            )
        return self._typed(positions, like.dtype)

    def _picked(self, sizes: str, axis: int, like: NDArray[Any]) -> str:
        at = np.array(axis, np.int64).reshape((1,) * like.ndim)
        index = self._constant(f"at_{axis}_{like.ndim}", at)
        return self._node("Gather", [sizes, index], f"size.{axis}.{like.ndim}", axis=0)

    def _typed(self, name: str, dtype: np.dtype[Any]) -> str:
        target = helper.np_dtype_to_tensor_dtype(dtype)
        return self._node("Cast", [name], f"{name}.{dtype}", to=target)

    def _numbers(self, values: list[int]) -> str:
        return self._constant(f"list_{values}", np.array(values, np.int64))

    def _node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        output = name if name.startswith(_PREFIX) else f"{_PREFIX}.{name}"
        if output not in self._made:
            self._made[output] = output
            made = helper.make_node(operator, inputs, [output], name=output, **attributes)
            self._nodes.append(made)
        return output

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        output = f"{_PREFIX}.{name}"
        if output not in self._made:
            self._made[output] = output
            self._constants.append(numpy_helper.from_array(np.asarray(value), output))
        return output


def _is_number(values: Values) -> bool:
    return all(value.dtype.kind == "i" and value.shape in ((), (1,)) for value in values)
