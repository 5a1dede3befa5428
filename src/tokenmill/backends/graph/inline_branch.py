"""Merged exports: the branch that goes on from a past also starts from an empty one."""

from __future__ import annotations

from onnx import GraphProto, NodeProto, helper

from tokenmill.backends.graph.names import ancestors, drop_unused, rename_tensors


def inline_branch(graph: GraphProto, use_cache_branch: str) -> bool:
    """Puts the nodes of the branch with a past in the place of the `If` around both.

    Applies where one `If` depends on the port and on nothing else. Whether the branch computes
    a first step as the other one does is for a probe to find out.

    Returns:
        Whether it applied.
    """
    steered = [node for node in graph.node if _is_steered(graph, node, use_cache_branch)]
    if len(steered) != 1:
        return False
    (node,) = steered
    branch = next(a.g for a in node.attribute if a.name == "then_branch")
    taken = {name for other in graph.node for name in other.output if other is not node}
    taken |= {tensor.name for tensor in graph.initializer}
    taken |= {port.name for port in graph.input} | set(node.output)
    inside = {name for inner in branch.node for name in inner.output if name}
    inside |= {tensor.name for tensor in branch.initializer}
    renamed = {name: f"{name}.with_past" for name in sorted(inside & taken)}
    nodes = [rename_tensors(inner, renamed) for inner in branch.node]
    for inner, outer in zip(branch.output, node.output, strict=True):
        if outer:
            source = renamed.get(inner.name, inner.name)
            nodes.append(helper.make_node("Identity", [source], [outer], name=f"{outer}.branch"))
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = renamed.get(tensor.name, tensor.name)
    kept = [other for other in graph.node if other is not node]
    del graph.node[:]
    graph.node.extend([*kept, *nodes])
    drop_unused(graph)
    return True


def _is_steered(graph: GraphProto, node: NodeProto, port: str) -> bool:
    if node.op_type != "If":
        return False
    _, tensors = ancestors(graph, node.input)
    return {name for name in tensors if any(name == p.name for p in graph.input)} == {port}
