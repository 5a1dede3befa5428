"""The nodes that take the place of a layer's attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tokenmill.backends.graph.ports import LENGTHS_INPUT, TOTAL_INPUT, StatePorts
from tokenmill.backends.graph.recognise import Attention, Cases
from tokenmill.backends.graph.rotary_tables import Folded
from tokenmill.backends.graph.sites import GraphIndex, Site

_SWAP = [0, 2, 1, 3]
"""[batch, heads, tokens, dim] to [batch, tokens, heads, dim], and back."""


class AttentionNodes:
    """Collects nodes and constants, to be put into the graph.

    Args:
        index: of the graph.
        cases: the graph evaluated, which tells the tensors' shapes.
        input_ids: a port of [batch, tokens].
    """

    def __init__(self, index: GraphIndex, cases: Cases, input_ids: str) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._index, self._cases = index, cases
        self._case, self._evaluation = cases.short[0]
        self._input_ids = input_ids
        self._prefix = ""

    def add(
        self,
        number: int,
        ports: StatePorts,
        site: Site,
        attention: Attention,
        rotation: Folded | None = None,
    ) -> None:
        """Makes the nodes of one layer.

        Args:
            rotation: for attention that rotates queries and keys itself.
        """
        self._prefix = f"tokenmill.attention.{number}"
        dim, heads, kv_heads = ports.head_dim, attention.num_heads, ports.num_kv_heads
        self._case, self._evaluation = self._cases.telling(heads, kv_heads)
        dtype = self._evaluation.get(ports.past_key).dtype
        inputs = [
            self._typed(self._flat(name, count, dim), name, dtype)
            for name, count in (
                (site.query if rotation is None else rotation.query, heads),
                (site.new_key if rotation is None else rotation.key, kv_heads),
                (site.new_value, kv_heads),
            )
        ]
        # What the softmax works in may be wider than the state.
        made_in = self._evaluation.get(attention.result).dtype
        is_last = attention.is_flat and made_in == dtype
        out = attention.result if is_last else f"{self._prefix}.flat"
        attributes: dict[str, Any] = {"scale": attention.scale}
        if attention.soft_cap:
            attributes["softcap"] = attention.soft_cap
        if attention.window is not None:
            attributes["local_window_size"] = attention.window
        tables: list[str] = []
        if rotation is not None:
            attributes |= {"do_rotary": 1, "rotary_interleaved": int(rotation.is_interleaved)}
            attributes["scale"] *= rotation.factor
            tables = [rotation.cos, rotation.sin]
        self._node(
            "GroupQueryAttention",
            [*inputs, *ports.past, LENGTHS_INPUT, TOTAL_INPUT, *tables],
            [out, *ports.present],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=kv_heads,
            **attributes,
        )
        if made_in != dtype:
            typed = attention.result if attention.is_flat else f"{self._prefix}.typed"
            self._node("Cast", [out], [typed], to=helper.np_dtype_to_tensor_dtype(made_in))
            out = typed
        if not attention.is_flat:
            shape = self._constant([0, 0, heads, dim])
            split = f"{self._prefix}.split"
            self._node("Reshape", [out, shape], [split])
            self._node("Transpose", [split], [attention.result], perm=_SWAP)

    def _flat(self, name: str, heads: int, dim: int) -> str:
        """Returns the tensor as [batch, tokens, heads * dim]."""
        batch, new = self._case.batch, self._case.new
        flat, split = (batch, new, heads * dim), (batch, new, heads, dim)
        shape = self._shape(name)
        if shape == flat:
            return name
        if shape == split:
            joined = self._constant([0, 0, heads * dim])
            return self._node("Reshape", [name, joined], [self._name(name, "joined")])
        if shape != (batch, heads, new, dim):
            name, shape = self._unmerged(name, heads, dim)
        before = self._before(name, "Transpose")
        if before is not None and self._shape(before) == split:
            earlier = self._before(before, "Reshape")
            if earlier is not None and self._shape(earlier) == flat:
                return earlier
            swapped = before
        else:
            swapped = self._node("Transpose", [name], [self._name(name, "swapped")], perm=_SWAP)
        joined = self._constant([0, 0, heads * dim])
        return self._node("Reshape", [swapped, joined], [self._name(name, "joined")])

    def _unmerged(self, name: str, heads: int, dim: int) -> tuple[str, tuple[int, ...]]:
        """Returns [batch, heads, tokens, dim] of a tensor that is so but for its axes."""
        wanted = self._case.batch, heads, self._case.new, dim
        before = self._before(name, "Reshape")
        if before is not None and self._shape(before) == wanted:
            return before, wanted
        sizes = self._node("Shape", [self._input_ids], [self._name(name, "sizes")])
        tokens = self._node(
            "Gather", [sizes, self._constant([1])], [self._name(name, "tokens")], axis=0
        )
        shape = self._node(
            "Concat",
            [self._constant([-1, heads]), tokens, self._constant([dim])],
            [self._name(name, "shape")],
            axis=0,
        )
        return self._node("Reshape", [name, shape], [self._name(name, "heads")]), wanted

    def _typed(self, name: str, original: str, dtype: np.dtype[Any]) -> str:
        if self._evaluation.get(original).dtype == dtype:
            return name
        target = helper.np_dtype_to_tensor_dtype(dtype)
        return self._node("Cast", [name], [self._name(original, "typed")], to=target)

    def _before(self, name: str, operator: str) -> str | None:
        node = self._index.maker(name)
        if node is None or node.op_type != operator:
            return None
        return self._index.source(node.input[0])

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._evaluation.get(name).shape

    def _name(self, tensor: str, what: str) -> str:
        return f"{self._prefix}.{what}.{tensor}"

    def _node(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        name = f"{self._prefix}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return outputs[0]

    def _constant(self, values: list[int]) -> str:
        name = f"{self._prefix}.constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name
