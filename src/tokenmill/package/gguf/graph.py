"""Nodes and initializers of an ONNX graph in the making, with the decoder's building blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.package.gguf.blocks import BlockForm, Blocks, Floats, stack
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
        self._constants: set[str] = set()

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

        if name not in self._constants:
            self._constants.add(name)
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
        self.stored_product(x, quants, scales, blocks.rest, blocks.form, name, out)

    def stored_product(
        self,
        x: str,
        quants: str,
        scales: str,
        rest: Floats | None,
        form: BlockForm,
        name: str,
        out: str,
    ) -> None:
        """Adds out = x @ blocks.T, with quants and scales that are initializers already."""
        main = out if rest is None else f"{name}/main"
        self.node(
            "MatMulNBits",
            [x, quants, scales],
            main,
            MICROSOFT,
            K=form.columns,
            N=form.rows,
            bits=form.bits,
            block_size=form.block_size,
            accuracy_level=_ACCURACY_LEVEL,
        )
        if rest is None:
            return
        # The rest is constant within a block, so its product needs the sums of x only. Reshape
        # and ReduceSum cost less than a product with a matrix of ones, and their bits do not
        # depend on the other rows.
        sums = self._sums_of(x, form)
        correction = f"{name}/correction"
        self.node("MatMul", [sums, self.weight(f"{name}.rest", rest.T)], correction)
        self.node("Add", [main, correction], out)

    def _sums_of(self, x: str, form: BlockForm) -> str:
        """Returns the block sums of x, [batch, sequence, blocks], computed once for each x."""
        key = (x, form.block_size)
        if key not in self._block_sums:
            blocks = form.columns // form.block_size
            shape = self.constant(
                f"blocks_{blocks}x{form.block_size}", [0, 0, blocks, form.block_size]
            )
            split = self.node("Reshape", [x, shape], f"{x}/blocks_{form.block_size}")
            self._block_sums[key] = self.node(
                "ReduceSum",
                [split, self.constant("last_axis", [-1])],
                f"{x}/block_sums_{form.block_size}",
                keepdims=0,
            )
        return self._block_sums[key]


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


def stack_biases(biases: Sequence[Floats | None], sizes: Sequence[int]) -> Floats | None:
    """Puts biases of these sizes after one another; None counts as zeros, all None as None."""
    if all(bias is None for bias in biases):
        return None
    return np.concatenate(
        [
            np.zeros(size, np.float32) if bias is None else bias
            for bias, size in zip(biases, sizes, strict=True)
        ]
    )
