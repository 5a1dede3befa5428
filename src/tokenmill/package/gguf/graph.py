"""Nodes and initializers of an ONNX graph in the making, with the decoder's building blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.package.gguf.blocks import Blocks, Floats, stack
from tokenmill.package.gguf.external_data import ExternalData

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Matrix = Blocks | Floats
MICROSOFT = "com.microsoft"
# Level 4 quantises activations to int8 by block; the default is an order of magnitude slower.
_ACCURACY_LEVEL = 4


class GraphBuilder:
    """Collects nodes in order; weights go straight to the external data.

    Args:
        data: where initializers are written.
    """

    def __init__(self, data: ExternalData) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._data = data
        self._block_sums: dict[tuple[str, int], str] = {}
        self._shared: dict[str, str] = {}

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | str,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Adds a node named after its first output, which is returned."""
        from onnx import helper

        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(
            helper.make_node(operator, inputs, names, name=names[0], domain=domain, **attributes)
        )
        return names[0]

    def weight(self, name: str, array: NDArray[Any]) -> str:
        """Adds an initializer in the external data."""
        self.initializers.append(self._data.add(name, array))
        return name

    def constant(self, name: str, values: Sequence[int]) -> str:
        """Adds a small int64 initializer inside the graph, once for each name."""
        from onnx import numpy_helper

        if name not in self._shared:
            self._shared[name] = name
            array = np.array(values, dtype=np.int64)
            self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def alias(self, weight: str, name: str, shape: Sequence[int]) -> str:
        """Adds an initializer over the bytes of another."""
        tensor = next(tensor for tensor in self.initializers if tensor.name == weight)
        self.initializers.append(self._data.alias(tensor, name, shape))
        return name

    def norm(self, x: str, weight: str, out: str, epsilon: float) -> str:
        """RMS norm over the last axis."""
        return self.node(
            "SimplifiedLayerNormalization",
            [x, weight],
            out,
            axis=-1,
            epsilon=epsilon,
            stash_type=1,
        )

    def linear(self, x: str, matrix: Matrix, name: str, bias: Floats | None = None) -> str:
        """Adds y = x @ matrix.T + bias and returns y's name."""
        out = f"{name}/out"
        product = out if bias is None else f"{name}/product"
        if isinstance(matrix, Blocks):
            self.quantised_product(x, matrix, name, product)
        else:
            weight = self.weight(f"{name}.weight", matrix.T)
            self.node("MatMul", [x, weight], product)
        if bias is not None:
            self.node("Add", [product, self.weight(f"{name}.bias", bias)], out)
        return out

    def quantised_product(self, x: str, blocks: Blocks, name: str, out: str) -> None:
        """Adds out = x @ blocks.T, with the correction for the blocks' rest."""
        quants = self.weight(f"{name}.weight", blocks.packed())
        scales = self.weight(f"{name}.scales", blocks.scales)
        main = out if blocks.rest is None else f"{name}/main"
        self.product_of(x, quants, scales, blocks, main)
        if blocks.rest is not None:
            self.correction(x, blocks, name, main, out)

    def product_of(self, x: str, quants: str, scales: str, blocks: Blocks, out: str) -> None:
        """Adds the product with the blocks' quants and scales alone."""
        rows, columns = blocks.quants.shape
        self.node(
            "MatMulNBits",
            [x, quants, scales],
            out,
            MICROSOFT,
            K=columns,
            N=rows,
            bits=blocks.bits,
            block_size=blocks.block_size,
            accuracy_level=_ACCURACY_LEVEL,
        )

    def correction(self, x: str, blocks: Blocks, name: str, main: str, out: str) -> None:
        """Adds out = main + (block sums of x) @ rest.T."""
        assert blocks.rest is not None, "the caller has checked that there is a rest"
        size, columns = blocks.block_size, blocks.quants.shape[1]
        sums = self._block_sums.get((x, size))
        if sums is None:
            # A product with zeros and ones: one small operator, and rows do not affect each other.
            sums = self._block_sums[x, size] = f"{x}/block_sums_{size}"
            self.node("MatMul", [x, self._summing_matrix(columns, size)], sums)
        rest = self.weight(f"{name}.rest", blocks.rest.T)
        self.node("MatMul", [sums, rest], f"{out}/correction")
        self.node("Add", [main, f"{out}/correction"], out)

    def _summing_matrix(self, columns: int, size: int) -> str:
        """Returns the matrix [columns, blocks] that adds up each block of a row."""
        name = f"block_sums_{columns}_{size}"
        if name not in self._shared:
            matrix = np.zeros((columns, columns // size), np.float32)
            matrix[np.arange(columns), np.arange(columns) // size] = 1
            self._shared[name] = self.weight(name, matrix)
        return self._shared[name]


def can_stack(parts: Sequence[Matrix]) -> bool:
    """Whether the matrices can be one product."""
    first = parts[0]
    if isinstance(first, Blocks):
        return all(
            isinstance(part, Blocks)
            and (part.bits, part.block_size) == (first.bits, first.block_size)
            for part in parts
        )
    return not any(isinstance(part, Blocks) for part in parts)


def stack_matrices(parts: Sequence[Matrix]) -> Matrix:
    """Puts matrices for which `can_stack` is true under one another."""
    blocks = [part for part in parts if isinstance(part, Blocks)]
    if blocks:
        return stack(blocks)
    return np.concatenate([part for part in parts if not isinstance(part, Blocks)])
