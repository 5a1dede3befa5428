"""Who makes and who reads a tensor, in subgraphs too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

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


def rename_tensors(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Returns a copy of the node with tensors renamed, in its subgraphs too."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        for i, name in enumerate(field):
            field[i] = names.get(name, name)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            for inner in graph.node:
                _rename(inner, names)
            for output in graph.output:
                output.name = names.get(output.name, output.name)


def keep_nodes(graph: GraphProto, indices: Collection[int]) -> None:
    """Drops all other nodes."""
    kept = [node for i, node in enumerate(graph.node) if i in indices]
    del graph.node[:]
    graph.node.extend(kept)


def in_order(graph: GraphProto) -> list[NodeProto]:
    """Returns the nodes so that each stands behind those whose outputs it reads.

    Nodes that stand so already keep their order.

    Raises:
        ValueError: the graph goes in a circle.
    """
    made_by = producers(graph)
    done: set[int] = set()
    begun: set[int] = set()
    out: list[NodeProto] = []
    for start in range(len(graph.node)):
        waiting = [start]
        while waiting:
            index = waiting[-1]
            node = graph.node[index]
            missing = [
                made_by[name]
                for name in inputs_of(node)
                if name in made_by and made_by[name] not in done
            ]
            if index in done or not missing:
                waiting.pop()
                if index not in done:
                    done.add(index)
                    out.append(node)
                continue
            if begun.intersection(missing):
                raise ValueError(f"the graph goes in a circle through {node.output[0]!r}")
            begun.add(index)
            waiting.extend(missing)
    return out


def drop_unused(graph: GraphProto) -> set[str]:
    """Keeps the nodes that the outputs need, in order; returns all tensors that they need."""
    live, tensors = ancestors(graph, [port.name for port in graph.output])
    keep_nodes(graph, set(live))
    ordered = in_order(graph)
    del graph.node[:]
    graph.node.extend(ordered)
    return tensors
