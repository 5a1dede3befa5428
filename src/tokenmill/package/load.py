"""A directory becomes a `ModelPackage`: which form it has, and who reads that form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.document import read_document
from tokenmill.package.genai import CONFIG_FILE, read_genai
from tokenmill.package.model_package import ModelPackage, PackageForm


class Form(NamedTuple):
    """How one form is recognised and read.

    Attributes:
        matches: looks at file names, and into a manifest.
        sign: what it looks for, in words.
        read: None where the form is known and not read yet.
    """

    form: PackageForm
    matches: Callable[[Path], bool]
    sign: str
    read: Callable[[Path], ModelPackage] | None


def _has(*names: str) -> Callable[[Path], bool]:
    return lambda directory: any((directory / name).is_file() for name in names)


def _is_model_package(directory: Path) -> bool:
    manifest = directory / "manifest.json"
    return manifest.is_file() and "components" in read_document(manifest)


def _is_hugging_face(directory: Path) -> bool:
    graphs = [*directory.glob("*.onnx"), *directory.glob("onnx/*.onnx")]
    return (directory / "config.json").is_file() and bool(graphs)


def _is_bare(directory: Path) -> bool:
    return (directory / "tokenizer.json").is_file() and any(directory.glob("*.onnx"))


FORMS: tuple[Form, ...] = (
    Form(PackageForm.MODEL_PACKAGE, _is_model_package, "manifest.json with components", None),
    Form(
        PackageForm.INFERENCE_METADATA,
        _has(*(f"inference_metadata.{ending}" for ending in ("yaml", "yml", "json"))),
        "inference_metadata.yaml, .yml or .json",
        None,
    ),
    Form(PackageForm.GENAI, _has(CONFIG_FILE), CONFIG_FILE, read_genai),
    Form(
        PackageForm.HUGGING_FACE, _is_hugging_face, "config.json with *.onnx or onnx/*.onnx", None
    ),
    Form(PackageForm.BARE, _is_bare, "*.onnx with tokenizer.json", None),
)
"""In order: the first form that matches is the directory's."""


def load_package(directory: Path) -> ModelPackage:
    """Reads what a model is. Loads no weights, and imports no graph library.

    Raises:
        InvalidPackage: not a directory, nothing recognisable in it, or something wrong with what
            is there; the message names file and field or port.
        UnsupportedModel: a sound package that needs what is not supported.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise InvalidPackage(f"{directory} is not a directory", fix="Give a model's directory")
    for form in FORMS:
        if not form.matches(root):
            continue
        if form.read is None:
            raise UnsupportedModel(
                f"{root} is a package of the form {form.form.value!r}",
                why="this version reads onnxruntime-genai directories and GGUF files",
                fix="Use the model's onnxruntime-genai or GGUF form",
            )
        return form.read(root)
    looked = "; ".join(form.sign for form in FORMS)
    raise InvalidPackage(
        f"{root} holds no model", why=f"none of these is there: {looked}", fix="Check the path"
    )
