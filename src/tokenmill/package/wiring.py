"""Whether a graph's nodes can run: each value has one maker, and nothing waits for itself."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.onnx_file import Node, OnnxFile

_FIX = "Export the package again"


def check_wiring(graph: OnnxFile) -> None:
    """Checks that every value that is read is made, once, and before it is needed.

    The runtime would refuse such a graph, too, but only after its weights are loaded, and without
    the node's name.

    Raises:
        InvalidPackage: a value that nothing makes or that two nodes make, or nodes that wait for
            each other; names node and value.
    """
    _Wiring(graph).check()


class _Wiring:
    """Makers by graph: the main graph is scope 0, a branch of a node sees what surrounds it."""

    def __init__(self, graph: OnnxFile) -> None:
        self._graph = graph
        self._fed = {tensor.name for tensor in graph.initializers}
        self._inputs = {0: {port.name for port in graph.inputs}}
        self._holders: dict[int, int] = {}
        self._makers: dict[tuple[int, str], int] = {}
        for index, node in enumerate(graph.nodes):
            for branch in node.branches:
                self._holders[branch.scope] = index
                self._inputs[branch.scope] = set(branch.inputs)
            for name in node.outputs:
                if name and self._makers.setdefault((node.scope, name), index) != index:
                    raise self._wrong(node, f"it makes {name!r}, which another node makes, too")

    def check(self) -> None:
        nodes = self._graph.nodes
        waits: list[set[int]] = [set() for _ in nodes]
        for index, node in enumerate(nodes):
            for reader, maker, name in self._needs(index, node):
                if reader == maker:
                    raise self._wrong(nodes[reader], f"it reads its own output {name!r}")
                waits[reader].add(maker)
        for port in self._graph.outputs:
            if port.name not in self._fed | self._inputs[0] and (0, port.name) not in self._makers:
                raise InvalidPackage(
                    f"the output {port.name!r} of {self._graph.path.name}",
                    why="no node makes it",
                    fix=_FIX,
                )
        self._refuse_circle(waits)

    def _needs(self, index: int, node: Node) -> Iterator[tuple[int, int, str]]:
        """Yields who waits for whom in one and the same graph, and for which value."""
        wanted = [(node.scope, index, name) for name in node.inputs if name]
        for branch in node.branches:
            wanted += [(branch.scope, index, name) for name in branch.outputs if name]
        for scope, reader, name in wanted:
            inside = scope != node.scope
            while True:
                maker = self._makers.get((scope, name))
                if maker is not None or name in self._inputs.get(scope, ()):
                    break
                if scope == 0:
                    if name not in self._fed:
                        raise self._wrong(node, f"it reads {name!r}, which nothing makes")
                    break
                holder = self._holders[scope]
                reader, scope, inside = holder, self._graph.nodes[holder].scope, False
            if maker is not None and not inside:
                yield reader, maker, name

    def _refuse_circle(self, waits: list[set[int]]) -> None:
        followers: list[list[int]] = [[] for _ in waits]
        for reader, makers in enumerate(waits):
            for maker in makers:
                followers[maker].append(reader)
        left = [len(makers) for makers in waits]
        ready = [index for index, count in enumerate(left) if count == 0]
        while ready:
            for reader in followers[ready.pop()]:
                left[reader] -= 1
                if left[reader] == 0:
                    ready.append(reader)
        stuck = {index for index, count in enumerate(left) if count}
        if not stuck:
            return
        # Who is stuck waits for another who is: whoever comes up twice on that way is in a circle.
        way: dict[int, None] = {}
        index = min(stuck)
        while index not in way:
            way[index] = None
            index = min(waits[index] & stuck)
        circle = list(way)[list(way).index(index) :]
        names = ", ".join(_called(self._graph.nodes[one]) for one in circle[1:5])
        raise self._wrong(self._graph.nodes[index], f"it waits for itself, by way of {names}")

    def _wrong(self, node: Node, why: str) -> InvalidPackage:
        what = f"the node {_called(node)} of {self._graph.path.name}"
        return InvalidPackage(what, why=why, fix=_FIX)


def _called(node: Node) -> str:
    made = next((name for name in node.outputs if name), "")
    return f"{node.operator} {node.name!r}" if node.name else f"{node.operator} that makes {made!r}"
