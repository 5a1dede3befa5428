"""What an input is for, from the operators that it meets on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.flow import KEEPING, RESHAPING, Flow, Use, Value, is_product, is_softmax
from tokenmill.package.model_package import Port, Role
from tokenmill.package.output_signals import output_width
from tokenmill.package.state_pairs import ATTENTION, GROUP_QUERY, MULTI_HEAD, SCATTER

_INTEGERS = ("int32", "int64")
_MASKS = (*_INTEGERS, "bool")
CONVENTIONAL = {
    Role.INPUT_IDS: "input_ids",
    Role.ATTENTION_MASK: "attention_mask",
    Role.POSITION_IDS: "position_ids",
    Role.WRITE_INDICES: "write_indices",
    Role.KV_LENGTHS: "nonpad_kv_seqlen",
    Role.USE_CACHE_BRANCH: "use_cache_branch",
}

_TABLES = {
    "Gather": (0, 1),
    "com.microsoft.GatherBlockQuantized": (0, 1),
    "com.microsoft.EmbedLayerNormalization": (2, 0),
}
"""Operators that look rows up in a table: the table's input, and that of the row numbers."""

_POSITION_SLOTS = {
    "RotaryEmbedding": 3,
    "com.microsoft.RotaryEmbedding": 1,
    GROUP_QUERY: 9,
}
_FEWEST_POSITIONS = 16
"""A table of fewer rows tells kinds of tokens apart, not positions: no text is that short."""

_RESHAPING = RESHAPING | {"Expand", "Gather"}
_ATTENTIONS = frozenset({ATTENTION, GROUP_QUERY, MULTI_HEAD})
_ENDS = _ATTENTIONS | {"CumSum", "If", "Loop", "ReduceSum", "Scan", "Shape", "Size"}
"""Behind these a number is no longer a position: a mask that is summed up tells lengths."""


class _Table(NamedTuple):
    """A weight whose rows an input chooses."""

    name: str
    dims: tuple[int, ...]


Found = tuple[Role, str, str]
"""A role, the port's name, and why."""


class InputSignals:
    """Finds the roles of inputs that are not state.

    Args:
        settle: file and field that would settle an ambiguity, for messages.
    """

    def __init__(self, flow: Flow, settle: str) -> None:
        self._flow, self._settle = flow, settle

    def assign(self, free: Sequence[Port], taken: Set[Role], logits: Port) -> Iterator[Found]:
        """Yields a role for each input of which one can be told.

        Args:
            free: inputs without a role.
            taken: roles that other ports have.
            logits: the output with the logits.

        Raises:
            InvalidPackage: a role that several inputs could have; they are named.
        """
        left = list(free)
        for role, find in (
            (Role.USE_CACHE_BRANCH, self._branch),
            (Role.WRITE_INDICES, self._write_indices),
            (Role.KV_LENGTHS, self._kv_lengths),
            (Role.INPUT_IDS, lambda ports: self._tokens(ports, logits)),
            (Role.POSITION_IDS, self._positions),
            (Role.ATTENTION_MASK, self._mask),
        ):
            if role in taken:
                continue
            able = find(left)
            if not able:
                able = self._named(role, left)
            if not able:
                continue
            name = self._one(role, able)
            yield role, name, able[name]
            left = [port for port in left if port.name != name]

    def contradiction(self, role: Role, port: Port, logits: Port) -> str | None:
        """Returns which other input the operators say a declared role belongs to, and why.

        None where they agree, or do not tell.
        """
        ports = list(self._flow.inputs.values())
        if role is Role.INPUT_IDS:
            width = output_width(self._flow, logits)
            tables = {one.name: self._table(one) for one in ports if one.dtype in _INTEGERS}
            able = {
                name: f"structure: it indexes the embedding {table.name!r}"
                for name, table in tables.items()
                if table is not None and table.dims[0] == width
            }
            if tables.get(port.name) is None:
                return None
        elif role is Role.WRITE_INDICES:
            able = self._write_indices(ports)
        elif role is Role.KV_LENGTHS:
            able = self._kv_lengths(ports)
        else:
            return None
        if not able or port.name in able:
            return None
        name = next(iter(able))
        return f"{name!r} is, by {able[name]}"

    def _named(self, role: Role, ports: Sequence[Port]) -> dict[str, str]:
        """Returns the input of the conventional name, where the graph's operators are mute."""
        name = CONVENTIONAL[role]
        return {port.name: _by_name(name) for port in ports if port.name == name}

    def _one(self, role: Role, able: dict[str, str]) -> str:
        if len(able) == 1:
            return next(iter(able))
        if CONVENTIONAL[role] in able:
            able[CONVENTIONAL[role]] = _by_name(CONVENTIONAL[role])
            return CONVENTIONAL[role]
        names = ", ".join(repr(name) for name in able)
        raise InvalidPackage(
            f"several inputs of {self._flow.graph.path.name} can be {role.value}",
            why=f"the graph's operators allow {names}",
            fix=f"Name the right one in {self._settle}",
        )

    def _reaching(
        self, ports: Sequence[Port], dtypes: Sequence[str], operator: str, slot: int
    ) -> dict[str, str]:
        out = {}
        for port in ports:
            if port.dtype in dtypes:
                for use in self._flow.forward(Value(0, port.name), _reshapes):
                    if use.node.operator == operator and use.slot == slot:
                        out[port.name] = f"structure: input {slot} of {operator}"
                        break
        return out

    def _branch(self, ports: Sequence[Port]) -> dict[str, str]:
        found = self._reaching(ports, ("bool",), "If", 0)
        return dict.fromkeys(found, "structure: it steers an If")

    def _write_indices(self, ports: Sequence[Port]) -> dict[str, str]:
        found = self._reaching(ports, _INTEGERS, SCATTER, 2)
        return dict.fromkeys(found, "structure: the rows that TensorScatter writes")

    def _kv_lengths(self, ports: Sequence[Port]) -> dict[str, str]:
        found = self._reaching(ports, _INTEGERS, ATTENTION, 6)
        return dict.fromkeys(found, "structure: the lengths of keys that Attention reads")

    def _tokens(self, ports: Sequence[Port], logits: Port) -> dict[str, str]:
        tables = {
            port.name: table
            for port in ports
            if port.dtype in _INTEGERS and (table := self._table(port)) is not None
        }
        if len(tables) > 1:
            width = output_width(self._flow, logits)
            wide = {name: table for name, table in tables.items() if table.dims[0] == width}
            tables = wide if len(wide) == 1 else tables
        return {
            name: f"structure: it indexes the embedding {table.name!r}, "
            f"{' x '.join(str(size) for size in table.dims)}"
            for name, table in tables.items()
        }

    def _table(self, port: Port) -> _Table | None:
        for use in self._flow.forward(Value(0, port.name), _reshapes):
            found = self._looked_up(use)
            if found is not None:
                return found
        return None

    def _looked_up(self, use: Use) -> _Table | None:
        """Returns the table whose rows a use chooses."""
        slots = _TABLES.get(use.node.operator)
        if slots is None or use.slot != slots[1]:
            return None
        weight = self._flow.weight(self._flow.operand(use.node, slots[0]), KEEPING)
        if weight is None or len(weight.dims) < 2:
            return None
        return _Table(weight.name, weight.dims)

    def _positions(self, ports: Sequence[Port]) -> dict[str, str]:
        out = {}
        for port in ports:
            if port.dtype in _INTEGERS:
                why = self._position(port)
                if why is not None:
                    out[port.name] = why
        return out

    def _position(self, port: Port) -> str | None:
        """Returns where an input is used as positions, if it is."""
        for use in self._flow.forward(Value(0, port.name), self._keeps_positions):
            operator = use.node.operator
            if operator in ("Cos", "Sin"):
                return f"structure: it reaches {operator}"
            if _POSITION_SLOTS.get(operator) == use.slot:
                return f"structure: the positions of {operator.removeprefix('com.microsoft.')}"
            table = self._looked_up(use)
            if table is not None and table.dims[0] >= _FEWEST_POSITIONS:
                sizes = " x ".join(str(size) for size in table.dims)
                return f"structure: it indexes the table {table.name!r}, {sizes}"
        return None

    def _keeps_positions(self, use: Use) -> bool:
        operator = use.node.operator
        if operator in _ENDS or operator in _TABLES or is_softmax(operator):
            return False
        if is_product(operator):
            return self._flow.is_constant(self._flow.operand(use.node, 1 - use.slot))
        return True

    def _mask(self, ports: Sequence[Port]) -> dict[str, str]:
        """An input of [batch, total] that decides what attention sees, and tells nothing else."""
        out = {}
        for port in ports:
            if port.dtype not in _MASKS or len(port.shape) != 2:
                continue
            for use in self._flow.forward(Value(0, port.name), self._keeps_mask):
                operator = use.node.operator
                if operator in _ATTENTIONS or is_softmax(operator):
                    shape = ", ".join(str(size) for size in port.shape)
                    name = operator.removeprefix("com.microsoft.")
                    out[port.name] = f"structure: {port.dtype} [{shape}] that reaches {name}"
                    break
        return out

    def _keeps_mask(self, use: Use) -> bool:
        operator = use.node.operator
        return not (is_product(operator) or is_softmax(operator) or operator in _ATTENTIONS)


def _reshapes(use: Use) -> bool:
    return use.slot == 0 and use.node.operator in _RESHAPING


def _by_name(name: str) -> str:
    return f"the port's conventional name {name!r}"
