"""Where a layer's attention stands in a graph: from its past and present to its result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onnx import GraphProto, NodeProto

from tokenmill.backends.graph.names import inputs_of
from tokenmill.backends.graph.ports import StatePorts

_ONLY_SHAPE = {"Shape", "Size"}
_PRODUCTS = {"MatMul", "Einsum", "FusedMatMul"}
_ENDS = _PRODUCTS | {"Softmax", "Attention", "GroupQueryAttention", "MultiHeadAttention", "Gemm"}


class Refused(Exception):
    """Why a graph's attention is left as it is, in one phrase."""


class Site(NamedTuple):
    """One layer's attention, as tensors of the graph.

    Attributes:
        query: an operand of the product that makes the scores.
        scores: that product; "" where one operator does it all.
        weights: the softmax's input, with the mask; "" where one operator does it all.
        key, value: the past with the new tokens appended.
        new_key, new_value: the new tokens alone.
        mixed: the product of the softmax and the values.
        operator: the node that does it all, or None.
    """

    query: str
    scores: str
    weights: str
    key: str
    value: str
    new_key: str
    new_value: str
    mixed: str
    operator: NodeProto | None


class GraphIndex:
    """Who makes and who reads the tensors of a graph.

    Looks through `Identity`, and through a `Cast` of state to the type that it has.
    """

    def __init__(self, graph: GraphProto) -> None:
        self.made_by: dict[str, NodeProto] = {}
        self.readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        self._same: dict[str, str] = {}
        types = {port.name: port.type.tensor_type.elem_type for port in graph.input}
        for node in graph.node:
            if _is_identity(node, types):
                self._same[node.output[0]] = self.source(node.input[0])
                continue
            if node.op_type == "Concat" and (known := types.keys() & node.input):
                types[node.output[0]] = types[known.pop()]
            for name in node.output:
                if name:
                    self.made_by[name] = node
            for name in {self.source(name) for name in inputs_of(node)}:
                self.readers[name].append(node)

    def source(self, name: str) -> str:
        """Returns the tensor that the name is another name of, or the name."""
        return self._same.get(name, name)

    def maker(self, name: str) -> NodeProto | None:
        """Returns the node that makes a tensor, or None for inputs and weights."""
        return self.made_by.get(self.source(name))

    def reach(self, name: str, ends: Collection[str] = _ENDS) -> tuple[list[NodeProto], set[str]]:
        """Follows a tensor's content forward, up to nodes of the types `ends`.

        Returns:
            These nodes, in the graph's order of reading, and all tensors on the way.
        """
        waiting, seen, found = [self.source(name)], {self.source(name)}, list[NodeProto]()
        while waiting:
            for node in self.readers[waiting.pop()]:
                if node.op_type in _ONLY_SHAPE:
                    continue
                if node.op_type in ends:
                    if not any(node is other for other in found):
                        found.append(node)
                    continue
                new = [tensor for tensor in node.output if tensor and tensor not in seen]
                seen.update(new)
                waiting.extend(new)
        return found, seen


def _is_identity(node: NodeProto, types: Mapping[str, int]) -> bool:
    if node.op_type == "Cast":
        to = next(a.i for a in node.attribute if a.name == "to")
        return bool(types.get(node.input[0]) == to)
    return bool(node.op_type == "Identity")


def find_site(index: GraphIndex, layer: StatePorts) -> Site:
    """Returns the attention that reads a layer's present key and value.

    Raises:
        Refused: there is no such attention, or more than one.
    """
    node = index.maker(layer.present_key)
    if node is not None and node.op_type == "Attention":
        return _operator_with_past(index, node, layer)
    new_key = _appended(index, layer.present_key, layer.past_key)
    new_value = _appended(index, layer.present_value, layer.past_value)
    key, value = index.source(layer.present_key), index.source(layer.present_value)
    product, on_way = _one(index, key, "its keys")
    if product.op_type == "Attention":
        operator, _ = _one(index, value, "its values")
        if operator is not product:
            raise Refused("its keys and values go to different operators")
        return Site(
            product.input[0], "", "", key, value, new_key, new_value, product.output[0], product
        )
    if product.op_type not in _PRODUCTS:
        raise Refused(f"its keys go to {product.op_type}")
    query = _other_operand(index, product, on_way, position=1)
    softmax, _ = _one(index, product.output[0], "its scores")
    if softmax.op_type != "Softmax":
        raise Refused(f"its scores go to {softmax.op_type}, not to a softmax")
    mix, on_way = _one(index, value, "its values")
    weighted, _ = _one(index, softmax.output[0], "its softmax")
    if mix is not weighted or mix.op_type not in _PRODUCTS:
        raise Refused("its values are not mixed by its softmax")
    _other_operand(index, mix, on_way, position=1)
    return Site(
        query,
        product.output[0],
        index.source(softmax.input[0]),
        key,
        value,
        new_key,
        new_value,
        mix.output[0],
        None,
    )


def _operator_with_past(index: GraphIndex, node: NodeProto, layer: StatePorts) -> Site:
    past = [index.source(name) for name in node.input[4:6]]
    present = [index.source(layer.present_key), index.source(layer.present_value)]
    if past != list(layer.past) or present != list(node.output[1:3]):
        raise Refused("its state does not go through one operator")
    key, value = present
    query, new_key, new_value = node.input[:3]
    return Site(query, "", "", key, value, new_key, new_value, node.output[0], node)


def _appended(index: GraphIndex, present: str, past: str) -> str:
    """Returns what is appended to the past along the axis of tokens."""
    node = index.maker(present)
    if node is None or node.op_type != "Concat" or len(node.input) != 2:
        raise Refused(f"{present!r} is not {past!r} with new tokens appended")
    axis = next(a.i for a in node.attribute if a.name == "axis")
    if index.source(node.input[0]) != past or axis not in (2, -2):
        raise Refused(f"{present!r} is not {past!r} with new tokens appended")
    return index.source(node.input[1])


def _one(index: GraphIndex, name: str, what: str) -> tuple[NodeProto, set[str]]:
    nodes, on_way = index.reach(name)
    if len(nodes) != 1:
        raise Refused(f"{what} have {len(nodes)} readers")
    return nodes[0], on_way


def _other_operand(
    index: GraphIndex, product: NodeProto, on_way: Iterable[str], position: int
) -> str:
    """Returns the operand that is not on the way; the one on the way must stand at `position`."""
    operands = [index.source(name) for name in product.input]
    inside = set(on_way)
    if len(operands) != 2 or [name in inside for name in operands] != [
        at == position for at in range(2)
    ]:
        raise Refused("its products have their operands in another order")
    return operands[1 - position]
