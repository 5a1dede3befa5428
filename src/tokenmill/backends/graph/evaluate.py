"""Evaluates parts of a graph on a few numbers, to find out what they compute.

Weights need not be there: a tensor is known by its values, or only by its type and shape, and
what depends on large weights is of the second kind. Masks, positions, scales and the order of
heads are of the first, however they are spelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tokenmill.backends.graph.direct_operators import DIRECT
from tokenmill.backends.graph.names import inputs_of
from tokenmill.backends.graph.outside_weights import OutsideWeights
from tokenmill.backends.graph.shape_rules import Shaped, Value, output_shapes

MAX_ELEMENTS = 2**26
"""A larger tensor is not computed."""

_MAX_WEIGHT = 2**23
"""A weight with more elements is known by its shape only."""

_MAX_FACTOR = 2**14
"""So is a product with a matrix of more elements: it is one of the model's layers."""


_MAX_WAITING = 10**6
"""More tensors wait for one another only in a circle."""

_TAKE_FACTORS = {"MatMul", "Gemm", "MatMulNBits", "DequantizeLinear", "Transpose"}


class CannotEvaluate(Exception):
    """A tensor's value, or even its shape, cannot be told."""


class _Node(NamedTuple):
    """A node with what is asked of it often: a message's fields are slow to read.

    Attributes:
        reads: what must be there before it is computed.
        holds_graph: a subgraph, which is not followed.
    """

    proto: NodeProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    holds_graph: bool


def _node(proto: NodeProto) -> _Node:
    is_if = proto.op_type == "If"
    return _Node(
        proto,
        tuple(proto.input),
        tuple(proto.output),
        (proto.input[0],) if is_if else tuple(dict.fromkeys(inputs_of(proto))),
        any(a.HasField("g") for a in proto.attribute),
    )


class Evaluator:
    """Computes tensors of one graph. Nodes are prepared once for all evaluations.

    What depends on no input is computed once for all of them, too.

    Args:
        model: whose main graph is evaluated; its nodes are in order, and must not change meanwhile.
        outside: reads external weights.
    """

    def __init__(self, model: ModelProto, outside: OutsideWeights) -> None:
        self.graph: GraphProto = model.graph
        self._opsets = list(model.opset_import)
        self._ir_version = model.ir_version
        self._outside = outside
        nodes = [_node(node) for node in self.graph.node]
        self.made_by = {name: node for node in nodes for name in node.outputs if name}
        self._readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in nodes:
            for name in node.reads:
                self._readers[name].append(node.proto)
        self.order: dict[str, int] = {
            name: i for i, node in enumerate(nodes) for name in node.outputs if name
        }
        self._weights = {tensor.name: tensor for tensor in self.graph.initializer}
        self._weights.update(_constants(self.graph))
        self._loaded: dict[str, Value] = {}
        self._fixed = _fixed(nodes, {port.name for port in self.graph.input} - set(self._weights))
        # No evaluation is kept: it would keep the evaluator, and with it the model.
        self._of_no_input: dict[str, Value] = {}
        self._prepared: dict[int, tuple[NodeProto, ReferenceEvaluator]] = {}

    def weight(self, name: str) -> Value | None:
        """Returns an initializer or constant, or None where there is none of that name."""
        if name in self._loaded:
            return self._loaded[name]
        tensor = self._weights.get(name)
        if tensor is None:
            return None
        self._loaded[name] = value = self._load(tensor)
        return value

    def fixed(self, name: str) -> Value | None:
        """Returns a tensor that depends on no input, or None for all others."""
        if (weight := self.weight(name)) is not None or name not in self._fixed:
            return weight
        try:
            return Evaluation(self, {}, values=self._of_no_input).get(name)
        except CannotEvaluate:
            # A graph that is not in order; who asks will see.
            return None

    def _load(self, tensor: TensorProto) -> Value:
        shape = tuple(tensor.dims)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if prod(shape) > (_MAX_FACTOR if self._is_factor(tensor) else _MAX_WEIGHT):
            return Shaped(dtype, shape)
        if tensor.data_location == TensorProto.EXTERNAL:
            outside = self._outside.load(tensor)
            return Shaped(dtype, shape) if outside is None else outside
        array: NDArray[Any] = numpy_helper.to_array(tensor)
        return array

    def _is_factor(self, tensor: TensorProto) -> bool:
        return len(tensor.dims) == 2 and all(
            node.op_type in _TAKE_FACTORS for node in self._readers[tensor.name]
        )

    def compute(self, node: NodeProto, inputs: Sequence[Value | None]) -> list[Value]:
        """Returns the node's outputs."""
        direct = DIRECT.get(node.op_type)
        if direct is not None and (made := direct(node, inputs)) is not None:
            return [made]
        is_known = not any(isinstance(value, Shaped) for value in inputs)
        if is_known and node.domain in ("", "ai.onnx") and not _is_layer(node, inputs):
            _check_size(node, inputs)
            return list(self._run(node, inputs))
        shapes = output_shapes(node, inputs)
        if shapes is not None:
            return list(shapes)
        for value in inputs:
            if isinstance(value, Shaped) and value.dtype.kind not in "fV":
                raise CannotEvaluate(f"{node.op_type} of unknown integers")
        zeros = [_zeros(value) if isinstance(value, Shaped) else value for value in inputs]
        _check_size(node, zeros)
        return [Shaped(array.dtype, array.shape) for array in self._run(node, zeros)]

    def _run(self, node: NodeProto, inputs: Sequence[Value | None]) -> list[NDArray[Any]]:
        names = [name for name in node.input if name]
        given = [value for name, value in zip(node.input, inputs, strict=True) if name]
        if id(node) not in self._prepared:
            infos = [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(value.dtype), None
                )
                for name, value in dict(zip(names, given, strict=True)).items()
                if value is not None
            ]
            outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
            part = helper.make_model(
                helper.make_graph([node], "part", infos, outputs),
                opset_imports=self._opsets,
                ir_version=self._ir_version,
            )
            # The node is kept: its id is the key.
            self._prepared[id(node)] = node, ReferenceEvaluator(part)
        with np.errstate(all="ignore"):
            found = self._prepared[id(node)][1].run(None, dict(zip(names, given, strict=True)))
        arrays = iter(found)
        return [np.asarray(next(arrays)) if name else np.zeros(0) for name in node.output]


class Evaluation:
    """Tensors for one set of inputs, computed when they are asked for and then kept.

    Args:
        evaluator: of the graph.
        feeds: tensors by name, inputs or any others; they are taken instead of being computed.
        base: an evaluation with other feeds, whose results are taken over where they do not
            depend on `feeds`.
        values: where results that depend on no input are kept; None makes a place of its own.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        feeds: Mapping[str, Value],
        base: Evaluation | None = None,
        *,
        values: dict[str, Value] | None = None,
    ) -> None:
        self._evaluator, self._base = evaluator, base
        self._is_partial = base is not None or values is not None
        self._values: dict[str, Value] = dict(feeds) if values is None else values
        self._depends = dict.fromkeys(feeds, True)
        # Nodes are in order: what is made before the first given tensor does not depend on it.
        self._first = min((evaluator.order.get(name, -1) for name in feeds), default=-1)

    def having(self, feeds: Mapping[str, Value]) -> Evaluation:
        """Returns the evaluation with further tensors given."""
        return Evaluation(self._evaluator, feeds, self)

    def known(self, name: str) -> NDArray[Any]:
        """Returns a tensor's values.

        Raises:
            CannotEvaluate: it depends on what is not known, or is too large.
        """
        value = self.get(name)
        if isinstance(value, Shaped):
            raise CannotEvaluate(f"{name} depends on weights")
        return value

    def get(self, name: str) -> Value:
        """Returns a tensor, or its type and shape. Raises `CannotEvaluate`."""
        waiting = [name]
        while waiting:
            current = waiting[-1]
            if current in self._values:
                waiting.pop()
                continue
            value = self._from_elsewhere(current)
            if value is not None:
                self._values[current] = value
                continue
            node = self._evaluator.made_by.get(current)
            if node is None:
                raise CannotEvaluate(f"nothing makes {current}")
            if node.holds_graph and node.proto.op_type != "If":
                raise CannotEvaluate(f"{node.proto.op_type} holds a graph")
            missing = [tensor for tensor in node.reads if tensor not in self._values]
            if missing:
                waiting.extend(missing)
                if len(waiting) > _MAX_WAITING:
                    raise CannotEvaluate("the graph goes in a circle")
                continue
            self._compute(node)
        return self._values[name]

    def _from_elsewhere(self, name: str) -> Value | None:
        if self._base is not None and not self._depends_on_feeds(name):
            return self._base.get(name)
        # What is given may be in place of what is fixed.
        return self._evaluator.weight(name) if self._is_partial else self._evaluator.fixed(name)

    def _depends_on_feeds(self, name: str) -> bool:
        found, order = self._depends, self._evaluator.order
        waiting = [name]
        while waiting:
            current = waiting[-1]
            if current in found:
                waiting.pop()
                continue
            if order.get(current, -1) < self._first:
                found[current] = False
                continue
            node = self._evaluator.made_by.get(current)
            inputs = () if node is None else node.reads
            missing = [tensor for tensor in inputs if tensor not in found]
            if missing:
                waiting.extend(missing)
                if len(waiting) > _MAX_WAITING:
                    raise CannotEvaluate("the graph goes in a circle")
            else:
                found[current] = any(found[tensor] for tensor in inputs)
        return found[name]

    def _compute(self, node: _Node) -> None:
        if node.holds_graph:
            raise CannotEvaluate("a branch is not followed")
        inputs = [self._values[name] if name else None for name in node.inputs]
        try:
            outputs = self._evaluator.compute(node.proto, inputs)
        except CannotEvaluate:
            raise
        except Exception as error:
            # The evaluator raises whatever an operator raises.
            raise CannotEvaluate(f"{node.proto.op_type}: {error}") from None
        for name, value in zip(node.outputs, outputs, strict=False):
            if name:
                self._values.setdefault(name, value)


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _fixed(nodes: Iterable[_Node], inputs: set[str]) -> set[str]:
    """Returns the tensors that depend on none of the inputs."""
    varying, fixed = set(inputs), set[str]()
    for node in nodes:
        varies = node.holds_graph or not varying.isdisjoint(node.reads)
        (varying if varies else fixed).update(node.outputs)
    return fixed


def _zeros(value: Shaped) -> NDArray[Any]:
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _is_layer(node: NodeProto, inputs: Sequence[Value | None]) -> bool:
    return node.op_type in ("MatMul", "Gemm") and any(
        value is not None and len(value.shape) == 2 and value.size > _MAX_FACTOR
        for value in inputs[1:2]
    )


def _check_size(node: NodeProto, inputs: Sequence[Value | None]) -> None:
    """Raises `CannotEvaluate` where the result would be too large."""
    size = 0
    if node.op_type in ("Expand", "ConstantOfShape", "Tile") and inputs:
        sizes = inputs[-1]
        assert isinstance(sizes, np.ndarray)
        size = prod(int(n) for n in sizes.ravel())
        if node.op_type == "Tile" and inputs[0] is not None:
            size *= inputs[0].size
    elif node.op_type == "Range":
        start, stop, step = (int(np.ravel(value)[0]) for value in inputs[:3])  # type: ignore[arg-type]
        size = abs((stop - start) // (step or 1))
    else:
        try:
            size = prod(np.broadcast_shapes(*(v.shape for v in inputs if v is not None)))
        except ValueError:
            size = 0
    if size > MAX_ELEMENTS:
        raise CannotEvaluate(f"{node.op_type} of {size} elements")
