"""How wide the keys are that an attention operator gets: what a state port's shape may not tell."""

from __future__ import annotations

from tokenmill.package.flow import Flow
from tokenmill.package.model_package import Port
from tokenmill.package.onnx_file import Node
from tokenmill.package.output_signals import output_width
from tokenmill.package.state_pairs import GROUP_QUERY


def key_head_dim(flow: Flow, node: Node) -> int | None:
    """Returns the numbers of one head's key, from the product that makes keys.

    Args:
        node: a GroupQueryAttention, with keys of its own or packed with queries and values.

    Returns:
        None where no product with a weight of known width stands directly before the operator.
    """
    if node.operator != GROUP_QUERY:
        return None
    heads, kv_heads = (node.attributes.get(name) for name in ("num_heads", "kv_num_heads"))
    if not (isinstance(heads, int) and isinstance(kv_heads, int) and heads > 0 and kv_heads > 0):
        return None
    key = flow.operand(node, 1)
    source, parts = (key, kv_heads) if key is not None else (flow.operand(node, 0), 0)
    if source is None or source.scope:
        return None
    parts = parts or heads + 2 * kv_heads
    width = output_width(flow, Port(source.name, "", (), is_input=False))
    return width // parts if width is not None and width % parts == 0 else None
