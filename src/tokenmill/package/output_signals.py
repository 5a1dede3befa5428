"""Which output holds the logits, and how wide they are."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.flow import KEEPING, Flow, Made, Value, is_product
from tokenmill.package.model_package import Port
from tokenmill.package.onnx_file import Initializer
from tokenmill.package.state_pairs import FLOATS

CONVENTIONAL = "logits"
_ELEMENTWISE = frozenset({"Add", "Clip", "Div", "Mul", "Slice", "Sub", "Tanh"})
_RENAMING = frozenset({"Identity"})
_GATHERS = {"Gather": 1, "com.microsoft.GatherBlockQuantized": 1}


def find_logits(flow: Flow, free: Sequence[Port], settle: str) -> tuple[str, str]:
    """Returns the logits' name, and why it is that port.

    Args:
        free: outputs that are not state.
        settle: file and field that would settle an ambiguity.

    Raises:
        InvalidPackage: no output can be meant, or several can; they are named.
    """
    name = flow.graph.path.name
    able = [port for port in free if port.dtype in FLOATS and len(port.shape) == 3]
    if len({next(flow.origins(Value(0, port.name), _RENAMING), None) for port in able}) == 1:
        return able[0].name, "structure: the one floating output of 3 axes that is not state"
    rows = embedding_rows(flow)
    wide = [port for port in able if output_width(flow, port) in rows]
    if len(wide) == 1:
        width = output_width(flow, wide[0])
        return wide[0].name, f"structure: the one output as wide as an embedding, {width}"
    if any(port.name == CONVENTIONAL for port in able):
        return CONVENTIONAL, f"the port's conventional name {CONVENTIONAL!r}"
    names = ", ".join(repr(port.name) for port in (able or free)[:6])
    why = f"it could be {names}" if able else f"it has {names or 'none'} beside state"
    raise InvalidPackage(
        f"{name} has no port for logits"
        if not able
        else f"several outputs of {name} can be logits",
        why=why,
        fix=f"Name it in {settle}",
    )


def embedding_rows(flow: Flow) -> frozenset[int]:
    """Returns the rows of all weights that are gathered from."""
    found = set()
    for node in flow.graph.nodes:
        if node.operator in _GATHERS:
            table = flow.weight(flow.operand(node, 0), KEEPING)
            if table is not None and len(table.dims) > 1:
                found.add(table.dims[0])
    return frozenset(found)


def output_width(flow: Flow, port: Port) -> int | None:
    """Returns the size of an output's last axis; from its last product where it is symbolic."""
    if port.shape and isinstance(port.shape[-1], int):
        return port.shape[-1]
    for value in flow.backward(Value(0, port.name), _back):
        made = flow.maker(value)
        if made is not None and is_product(made.node.operator):
            return _product_width(flow, made)
    return None


def _back(made: Made) -> tuple[int, ...]:
    operator = made.node.operator
    if operator in KEEPING:
        return (0,)
    return (0, 1) if operator in _ELEMENTWISE else ()


def _product_width(flow: Flow, made: Made) -> int | None:
    width = made.node.attributes.get("N")
    if isinstance(width, int):
        return width
    weight: Initializer | None = flow.weight(flow.operand(made.node, 1), KEEPING - {"Transpose"})
    if weight is not None and len(weight.dims) == 2:
        return weight.dims[0 if made.node.attributes.get("transB") == 1 else 1]
    turned = flow.weight(flow.operand(made.node, 1), KEEPING)
    return turned.dims[0] if turned is not None and len(turned.dims) == 2 else None
