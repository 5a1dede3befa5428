"""One product of every block kind, alone, against its own dequantised weights."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tokenmill.package.gguf.blocks import Blocks, quantise
from tokenmill.package.gguf.external_data import ExternalData
from tokenmill.package.gguf.graph import (
    MICROSOFT,
    GraphBuilder,
    can_stack,
    stack_biases,
    stack_matrices,
)

COLUMNS, ROWS = 128, 24


def random_blocks(bits, block_size, *, rest, seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    shape = (rows, COLUMNS // block_size)
    return Blocks(
        rng.integers(0, 1 << bits, (rows, COLUMNS), dtype=np.uint8),
        rng.standard_normal(shape).astype(np.float32),
        rng.standard_normal(shape).astype(np.float32) if rest else None,
        bits,
        block_size,
    )


def run_products(folder, matrices, x, bias=None):
    """Builds a graph of products over one input; returns their results and the operators."""
    with (folder / "data").open("wb") as file:
        graph = GraphBuilder(ExternalData(file, "data"))
        names = [graph.linear("x", matrix, f"m{i}", bias) for i, matrix in enumerate(matrices)]
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "products",
            [value("x", TensorProto.FLOAT, ["batch", "sequence", x.shape[-1]])],
            [value(name, TensorProto.FLOAT, ["batch", "sequence", None]) for name in names],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=10,
    )
    onnx.save(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    return session.run(names, {"x": x}), [node.op_type for node in graph.nodes]


def integers(shape):
    """Activations that int8 blocks hold exactly: every block of 16 has a 127."""
    x = np.random.default_rng(3).integers(-127, 128, shape).astype(np.float32)
    x[..., ::16] = 127
    return x


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize(("bits", "block_size"), [(4, 32), (4, 16), (8, 32), (8, 16)])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_product_of_blocks_is_that_of_its_weights(tmp_path, bits, block_size, rest, tokens):
    blocks = random_blocks(bits, block_size, rest=rest)
    x = integers((2, tokens, COLUMNS))
    (got,), _ = run_products(tmp_path, [blocks], x)
    expected = x.astype(np.float64) @ blocks.dequantise().T.astype(np.float64)
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


def test_two_products_of_one_input_share_its_block_sums(tmp_path):
    matrices = [random_blocks(4, 32, rest=True, seed=seed) for seed in (1, 2)]
    _, operators = run_products(tmp_path, matrices, integers((1, 3, COLUMNS)))
    assert operators.count("ReduceSum") == 1
    assert operators.count("MatMulNBits") == 2


def test_blocks_without_a_rest_are_one_operator(tmp_path):
    blocks = random_blocks(4, 32, rest=False)
    _, operators = run_products(tmp_path, [blocks], integers((1, 1, COLUMNS)))
    assert operators == ["MatMulNBits"]


def test_a_bias_is_added(tmp_path):
    matrix = np.eye(COLUMNS, dtype=np.float32)[:ROWS]
    bias = np.arange(ROWS, dtype=np.float32)
    x = integers((1, 2, COLUMNS))
    (got,), _ = run_products(tmp_path, [matrix], x, bias)
    assert np.array_equal(got, x[..., :ROWS] + bias)


def test_a_row_gives_the_same_bits_beside_others(tmp_path):
    blocks = random_blocks(4, 32, rest=True)
    x = np.random.default_rng(4).standard_normal((8, 1, COLUMNS), dtype=np.float32)
    (together,), _ = run_products(tmp_path, [blocks], x)
    for row in range(8):
        (alone,), _ = run_products(tmp_path, [blocks], x[row : row + 1])
        assert np.array_equal(alone[0], together[row])


def test_stacked_blocks_are_the_weights_under_one_another():
    parts = [random_blocks(4, 32, rest=True), random_blocks(4, 32, rest=False, seed=1, rows=8)]
    assert can_stack(parts)
    stacked = stack_matrices(parts)
    expected = np.concatenate([part.dequantise() for part in parts])
    assert np.array_equal(stacked.dequantise(), expected)


def test_matrices_of_other_forms_are_not_stacked():
    blocks = random_blocks(4, 32, rest=False)
    floats = np.zeros((ROWS, COLUMNS), np.float32)
    assert not can_stack([blocks, random_blocks(8, 32, rest=False)])
    assert not can_stack([blocks, random_blocks(4, 16, rest=False)])
    assert not can_stack([blocks, floats])
    assert not can_stack([floats, blocks])
    assert can_stack([floats, floats])


def test_a_missing_bias_counts_as_zeros_beside_another():
    one = np.ones(2, np.float32)
    assert stack_biases([None, None], [2, 3]) is None
    assert stack_biases([one, None], [2, 3]).tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(("bits", "step"), [(8, 1 / 254), (4, 1 / 12)])
def test_our_own_blocks_are_within_half_a_step(bits, step):
    weights = np.random.default_rng(5).standard_normal((16, 64), dtype=np.float32)
    blocks = quantise(weights, bits)
    peaks = np.abs(weights.reshape(16, 2, 32)).max(-1, keepdims=True)
    errors = np.abs(blocks.dequantise() - weights).reshape(16, 2, 32)
    assert (errors <= peaks * step * 1.01).mean() > 0.99
    assert blocks.rest is None


def test_our_own_blocks_hold_zeros():
    blocks = quantise(np.zeros((2, 32), np.float32), 4)
    assert not blocks.dequantise().any()
