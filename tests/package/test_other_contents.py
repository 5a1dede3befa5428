"""Directories that hold something else than a model say what that is, and what to do."""

import os

import pytest

from support.tiny_genai import write_genai
from tokenmill.core.errors import InvalidPackage
from tokenmill.package.cache import Cache
from tokenmill.package.load import load_package
from tokenmill.package.other_contents import is_pointer
from tokenmill.package.resolve import import_file

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n"
)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_pointer_among_a_models_files_is_named(tmp_path, name):
    root = write_genai(tmp_path / "model")
    (root / name).write_text(POINTER)
    with pytest.raises(InvalidPackage) as caught:
        load_package(root)
    assert str(caught.value) == (
        f"{root} was cloned without its large files: {name} only says where Git LFS keeps the "
        "content. Run `git lfs pull` there, or let `tokenmill pull` fetch the repository"
    )


def test_several_pointers_are_counted_and_those_in_onnx_too(tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "config.json").write_text("{}")
    for name in ("onnx/model.onnx", "onnx/model_q4.onnx", "tokenizer.json"):
        (tmp_path / name).write_text(POINTER)
    with pytest.raises(InvalidPackage, match=r"onnx/model\.onnx and 2 more only say where Git LFS"):
        load_package(tmp_path)


def test_a_file_that_only_begins_like_a_pointer_is_none(tmp_path):
    file = tmp_path / "notes"
    file.write_text(POINTER + " " * 2000)
    assert not is_pointer(file)
    file.write_text("version https://example.org/spec/v1\n")
    assert not is_pointer(file)
    assert not is_pointer(tmp_path / "absent")


def test_what_is_no_file_is_no_pointer(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    assert not any(is_pointer(tmp_path / name) for name in ("circle", "pipe", "."))


def test_a_pointer_in_place_of_a_gguf_file_is_named(tmp_path):
    (tmp_path / "model.gguf").write_text(POINTER)
    with pytest.raises(InvalidPackage, match=r"model\.gguf is not the model, but what Git LFS"):
        import_file(tmp_path / "model.gguf", Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    "name", ["model-00001-of-00002.safetensors", "pytorch_model.bin", "consolidated.00.pth"]
)
def test_weights_without_a_graph_are_named_with_what_to_do(tmp_path, name):
    for file in (name, "config.json", "tokenizer.json"):
        (tmp_path / file).write_text("{}")
    with pytest.raises(InvalidPackage) as caught:
        load_package(tmp_path)
    assert str(caught.value).startswith(
        f"{tmp_path} holds weights without an ONNX graph: {name} is for PyTorch, and there is no "
        "*.onnx. Export the model, e.g. with `optimum-cli export onnx"
    )


def test_weights_beside_a_graph_are_no_fault(tmp_path):
    root = write_genai(tmp_path / "model")
    (root / "model.safetensors").write_bytes(bytes(2000))
    assert load_package(root).vocab_size == 96
