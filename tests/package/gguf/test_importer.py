import json

import numpy as np
import onnx
import pytest

from support.tiny_gguf import numpy_logits, write_tiny_gguf
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.reference.forward import teacher_forced_logits
from tokenmill.backends.select import open_backend
from tokenmill.core.errors import (
    CorruptFile,
    InvalidOption,
    InvalidPackage,
    TokenmillError,
    UnsupportedModel,
)
from tokenmill.core.rows import Logits, Row
from tokenmill.package.gguf import importer
from tokenmill.package.gguf.importer import import_gguf
from tokenmill.package.load import load_package

IDS = [104, 101, 256, 108, 111, 32, 119, 111, 114, 108, 100, 33]


def imported(tmp_path, *, precision="keep", **fields):
    weights = write_tiny_gguf(tmp_path / "tiny.gguf", **fields)
    directory = import_gguf(tmp_path / "tiny.gguf", tmp_path / "out", precision=precision)
    return weights, load_package(directory)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_float_weights_compute_what_plain_numpy_does(tmp_path, architecture):
    weights, package = imported(tmp_path, architecture=architecture)
    got = teacher_forced_logits(package, IDS)
    expected = numpy_logits(weights, IDS, architecture=architecture)
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_kept_blocks_are_the_files_own_weights(tmp_path, quant, architecture):
    weights, package = imported(tmp_path, quant=quant, architecture=architecture)
    expected = numpy_logits(weights, IDS, architecture=architecture)
    fast = teacher_forced_logits(package, IDS)
    assert relative_error(fast, expected) < 0.06  # activations in int8
    compute_in_float(package.decoder.file)
    exact = teacher_forced_logits(package, IDS)
    assert relative_error(exact, expected) < 1e-5


def relative_error(got, expected):
    return np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean())


def compute_in_float(file):
    """Takes the int8 of the activations out of a graph, so that only the weights are compared."""
    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    onnx.save(model, file)


def test_fp32_of_a_quantised_file_is_exact(tmp_path):
    weights, package = imported(tmp_path, quant="Q4_1", precision="fp32")
    expected = numpy_logits(weights, IDS)
    assert np.abs(teacher_forced_logits(package, IDS) - expected).max() < 1e-3


def test_the_import_decodes_step_by_step_as_in_one_piece(tmp_path):
    _, package = imported(tmp_path)
    backend = open_backend(package, BackendConfig(max_rows=1))
    sequence = backend.open()
    whole = backend.run([Row(sequence, IDS, logits=Logits.ALL)]).rows[0].logits.copy()
    for i, token in enumerate(IDS):
        got = backend.run([Row(sequence, [token])]).rows[0].logits[0]
        backend.commit(sequence, 1)
        assert np.abs(got - whole[i]).max() < 1e-4
    backend.shutdown()


def test_the_tokenizer_knows_bytes_merges_and_control_tokens(tmp_path):
    from tokenizers import Tokenizer

    imported(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ids = tokenizer.encode("the <|end|>").ids
    assert ids == [256, 101, 32, 257]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the "


def test_an_unknown_architecture_names_itself_and_the_known_ones(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf", architecture="mamba")
    with pytest.raises(UnsupportedModel, match=r"mamba.*llama, qwen2"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_tensor_is_named(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf", drop=("blk.1.ffn_up.weight",))
    with pytest.raises(InvalidPackage, match=r"blk\.1\.ffn_up\.weight"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_a_file_cut_anywhere_is_refused_and_leaves_nothing(tmp_path):
    write_tiny_gguf(tmp_path / "whole.gguf", quant="Q8_0")
    whole = (tmp_path / "whole.gguf").read_bytes()
    for size in [0, 3, 4, 8, 20, 100, 1000, 5000, len(whole) // 2, len(whole) - 1000]:
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(CorruptFile):
            import_gguf(cut, tmp_path / "out")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gguf", "whole.gguf"]


def test_an_import_that_breaks_leaves_the_old_directory_intact(tmp_path, monkeypatch):
    imported(tmp_path)
    before = (tmp_path / "out" / "model.onnx").read_bytes()

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(importer, "_sidecar", fail)
    with pytest.raises(TokenmillError, match="disk is full"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "out", precision="fp32")
    assert (tmp_path / "out" / "model.onnx").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "tiny.gguf"]


def test_an_unknown_precision_is_refused(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf")
    with pytest.raises(InvalidOption, match="int3"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out", precision="int3")


def test_provenance_and_blocks_are_in_the_sidecar_only(tmp_path):
    imported(tmp_path, quant="Q4_1")
    sidecar = json.loads((tmp_path / "out" / "tokenmill.json").read_text())
    assert sidecar["blocks"]["Q4_1"]["exact"]
    assert sidecar["provenance"]["file"] == "tiny.gguf"
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    assert set(config) == {"model", "search"}
