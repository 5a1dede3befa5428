"""Who makes and who reads a tensor, in subgraphs too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto


def inputs_of(node: NodeProto) -> Iterator[str]:
    """Yields every tensor that the node reads, including from within its subgraphs."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from _inputs_of_graph(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                yield from _inputs_of_graph(graph)


def _inputs_of_graph(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from inputs_of(node)
    yield from (output.name for output in graph.output)


def producers(graph: GraphProto) -> dict[str, int]:
    """Returns the index of the node that makes each tensor."""
    return {name: i for i, node in enumerate(graph.node) for name in node.output if name}


def ancestors(graph: GraphProto, targets: Iterable[str]) -> tuple[list[int], set[str]]:
    """Returns the nodes that the targets depend on, ascending, and all tensors on the way."""
    made_by = producers(graph)
    nodes: set[int] = set()
    seen: set[str] = set()
    waiting = list(targets)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        index = made_by.get(name)
        if index is not None and index not in nodes:
            nodes.add(index)
            waiting.extend(inputs_of(graph.node[index]))
    return sorted(nodes), seen


def keep_nodes(graph: GraphProto, indices: Collection[int]) -> None:
    """Drops all other nodes."""
    kept = [node for i, node in enumerate(graph.node) if i in indices]
    del graph.node[:]
    graph.node.extend(kept)
