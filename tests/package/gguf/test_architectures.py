"""Forms of the decoder: heads, mixed kinds, rotation and windows against plain NumPy."""

import json

import numpy as np
import onnx
import pytest

from support.tiny_gguf import HEAD_DIM, LAYERS, numpy_logits, write_tiny_gguf
from tokenmill.backends.reference.forward import teacher_forced_logits
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.attention import halves_order
from tokenmill.package.gguf.importer import import_gguf
from tokenmill.package.load import load_package

IDS = [104, 101, 256, 108, 111, 32, 119, 111, 114, 108, 100, 33]


def imported(tmp_path, *, precision="keep", **fields):
    weights = write_tiny_gguf(tmp_path / "tiny.gguf", **fields)
    directory = import_gguf(tmp_path / "tiny.gguf", tmp_path / "out", precision=precision)
    return weights, load_package(directory)


def operators(package):
    model = onnx.load(package.decoder.file, load_external_data=False)
    return [node.op_type for node in model.graph.node]


def assert_close(got, expected, bound=1e-4):
    assert np.abs(got - expected).max() < bound * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["keep", "fp32"])
@pytest.mark.parametrize("quant", ["F32", "F16", "BF16"])
def test_a_head_of_its_own_is_used(tmp_path, quant, precision):
    weights, package = imported(tmp_path, tied=False, quant=quant, precision=precision)
    assert_close(teacher_forced_logits(package, IDS), numpy_logits(weights, IDS))


@pytest.mark.parametrize("quant", ["Q4_1", "Q5_1", "Q8_0"])
def test_a_quantised_head_of_its_own_is_used(tmp_path, quant):
    weights, package = imported(tmp_path, tied=False, quants={"output.weight": quant})
    got, expected = teacher_forced_logits(package, IDS), numpy_logits(weights, IDS)
    assert_close(got, expected, 0.05)


def test_queries_keys_and_values_of_different_kinds_are_three_products(tmp_path):
    kinds = {"attn_v": "Q8_0", "ffn_up": "Q8_0"}
    weights, package = imported(tmp_path, quant="Q4_0", quants=kinds)
    got, expected = teacher_forced_logits(package, IDS), numpy_logits(weights, IDS)
    assert np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()) < 0.06
    # q, k, v, o, gate, up, down of each layer, and the head.
    assert operators(package).count("MatMulNBits") == 7 * LAYERS + 1


def test_queries_keys_and_values_of_one_kind_are_one_product(tmp_path):
    _, package = imported(tmp_path, quant="Q4_0")
    assert operators(package).count("MatMulNBits") == 4 * LAYERS + 1


def test_norms_of_queries_and_keys_are_applied(tmp_path):
    rng = np.random.default_rng(9)
    extra = {
        f"blk.{layer}.{name}.weight": (1 + 0.5 * rng.standard_normal(HEAD_DIM)).astype(np.float32)
        for layer in range(LAYERS)
        for name in ("attn_q_norm", "attn_k_norm")
    }
    weights, package = imported(tmp_path, architecture="qwen3", extra=extra)
    expected = numpy_logits(weights, IDS, architecture="qwen3")
    assert_close(teacher_forced_logits(package, IDS), expected)


def test_optional_biases_of_a_llama_are_permuted_with_their_rows(tmp_path):
    rng = np.random.default_rng(10)
    extra = {
        f"blk.{layer}.{name}.bias": rng.standard_normal(size).astype(np.float32)
        for layer in range(LAYERS)
        for name, size in (("attn_q", 64), ("attn_k", 32), ("ffn_gate", 96), ("attn_output", 64))
    }
    weights, package = imported(tmp_path, extra=extra)
    assert_close(teacher_forced_logits(package, IDS), numpy_logits(weights, IDS))


def test_the_files_frequency_factors_are_in_the_rotation(tmp_path):
    factors = np.linspace(1, 8, HEAD_DIM // 2).astype(np.float32)
    weights, package = imported(tmp_path, extra={"rope_freqs.weight": factors})
    expected = numpy_logits(weights, IDS, frequency_divisor=factors)
    assert_close(teacher_forced_logits(package, IDS), expected)


def test_linear_scaling_divides_positions(tmp_path):
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    weights, package = imported(tmp_path, metadata=scaling)
    expected = numpy_logits(weights, IDS, frequency_divisor=4.0)
    assert_close(teacher_forced_logits(package, IDS), expected)


def test_a_sliding_window_is_kept(tmp_path):
    window = {"llama.attention.sliding_window": 4}
    weights, package = imported(tmp_path, metadata=window)
    assert_close(teacher_forced_logits(package, IDS), numpy_logits(weights, IDS, window=4))


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, r"llama\.expert_count"),
        ({"llama.attention.value_length": 32}, r"value_length"),
    ],
)
def test_what_the_graph_cannot_express_is_refused_by_name(tmp_path, metadata, named):
    write_tiny_gguf(tmp_path / "x.gguf", metadata=metadata)
    with pytest.raises(UnsupportedModel, match=named):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_a_tensor_that_nothing_uses_is_refused_by_name(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf", extra={"blk.0.ssm.weight": np.ones(4, np.float32)})
    with pytest.raises(InvalidPackage, match=r"blk\.0\.ssm\.weight"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_a_tensor_of_the_wrong_shape_is_refused_by_name(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf", extra={"blk.1.ffn_norm.weight": np.ones(32, np.float32)})
    with pytest.raises(InvalidPackage, match=r"blk\.1\.ffn_norm\.weight.*\(32,\).*\(64,\)"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_values_that_are_not_finite_are_refused_by_name(tmp_path):
    bad = np.full(64, np.nan, np.float32)
    write_tiny_gguf(tmp_path / "x.gguf", extra={"blk.0.ffn_norm.weight": bad})
    with pytest.raises(InvalidPackage, match=r"blk\.0\.ffn_norm\.weight.*not finite"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.06), ("int4", 0.5)])
def test_our_own_quantisation_is_near_the_weights_and_says_so(tmp_path, precision, bound):
    weights, package = imported(tmp_path, precision=precision)
    got, expected = teacher_forced_logits(package, IDS), numpy_logits(weights, IDS)
    assert np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()) < bound
    sidecar = json.loads((tmp_path / "out" / "tokenmill.json").read_text())
    assert not sidecar["blocks"]["F32"]["exact"]


def test_interleaved_rows_become_halves_head_by_head():
    assert halves_order(2, 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
