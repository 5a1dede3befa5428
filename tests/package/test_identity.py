import os

import pytest

from support.tiny_onnx import TinySpec, save_decoder
from tokenmill.core.errors import InvalidPackage
from tokenmill.package.identity import content_identity, fingerprint_of
from tokenmill.package.onnx_file import read_onnx

SPEC = TinySpec(vocab=256)  # an embedding of 64 KiB: more than is hashed whole


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def fingerprint(directory, spec=SPEC, documents=()):
    return fingerprint_of(read_onnx(save_decoder(spec, directory)), documents)


@pytest.mark.parametrize("external", [False, True])
def test_the_same_content_elsewhere_is_the_same_model(tmp_path, external):
    spec = TinySpec(vocab=256, external=external)
    found = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.add(fingerprint(tmp_path / name, spec))
        os.utime(tmp_path / name / "model.onnx", (1, 1))
        found.add(fingerprint_of(read_onnx(tmp_path / name / "model.onnx"), ()))
    assert len(found) == 1


@pytest.mark.parametrize("external", [False, True])
def test_a_change_to_any_weight_is_another_model(tmp_path, external):
    spec = TinySpec(vocab=256, external=external)
    first = fingerprint(tmp_path, spec)
    graph = read_onnx(tmp_path / "model.onnx")
    seen = {first}
    for tensor in graph.initializers:
        path = tmp_path / (tensor.location or "model.onnx")
        for offset in (tensor.offset, tensor.offset + tensor.nbytes - 1):
            flip(path, offset)
            seen.add(fingerprint_of(read_onnx(tmp_path / "model.onnx"), ()))
            flip(path, offset)
    assert len(seen) == 2 * len(graph.initializers) + 1
    assert fingerprint_of(graph, ()) == first


def test_a_document_that_steers_the_graph_counts(tmp_path):
    document = tmp_path / "genai_config.json"
    document.write_text("{}")
    first = fingerprint(tmp_path, documents=[document])
    document.write_text("{ }")
    assert fingerprint(tmp_path, documents=[document]) != first


def test_a_file_is_known_by_its_content(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"GGUF" + bytes(1000))
    first = content_identity(tmp_path / "a")
    assert content_identity(tmp_path / "b") == first
    flip(tmp_path / "b", 700)
    assert content_identity(tmp_path / "b") != first


@pytest.mark.parametrize("size", [0, 1, (4 << 20) - 1, 8 << 20, (8 << 20) + 1])
def test_files_of_any_size_have_an_identity(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    assert len(content_identity(path)) == 64


@pytest.mark.parametrize("offset", [0, 4 << 20, 20 << 20, 40 << 20, (64 << 20) - 1])
def test_a_change_between_the_ends_of_a_large_file_shows(tmp_path, offset):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    first = content_identity(path)
    # A changed tensor is larger than the distance between two samples.
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\1" * min(16384, (64 << 20) - offset))
    assert content_identity(path) != first


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidPackage, match=r"cannot read .*none: No such file"):
        content_identity(tmp_path / "none")
