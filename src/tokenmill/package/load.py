"""A directory becomes a `ModelPackage`: which form it has, and who reads that form."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.bare import read_bare
from tokenmill.package.document import read_document
from tokenmill.package.genai import CONFIG_FILE, read_genai
from tokenmill.package.graph_files import graph_files
from tokenmill.package.hugging_face import read_hugging_face
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.metadata.read import read_metadata
from tokenmill.package.model_package import ModelPackage, PackageForm
from tokenmill.package.variants import read_model_package

__all__ = ["FORMS", "Form", "LoadOptions", "load_package"]


class Form(NamedTuple):
    """How one form is recognised and read.

    Attributes:
        matches: looks at file names, and into a manifest.
        sign: what it looks for, in words.
        read: reads the directory; see `load_package` for what it raises.
    """

    form: PackageForm
    matches: Callable[[Path], bool]
    sign: str
    read: Callable[[Path, LoadOptions], ModelPackage]


def _has(*names: str) -> Callable[[Path], bool]:
    return lambda directory: any(_is_there(directory / name) for name in names)


def _is_there(file: Path) -> bool:
    """Whether anything has that name: a broken link or a folder is an error, not nothing."""
    return os.path.lexists(file)


def _is_model_package(directory: Path) -> bool:
    manifest = directory / "manifest.json"
    return manifest.is_file() and "components" in read_document(manifest)


def _is_hugging_face(directory: Path) -> bool:
    return _is_there(directory / "config.json") and bool(graph_files(directory))


def _is_bare(directory: Path) -> bool:
    return (directory / "tokenizer.json").is_file() and bool(graph_files(directory))


FORMS: tuple[Form, ...] = (
    Form(
        PackageForm.MODEL_PACKAGE,
        _is_model_package,
        "manifest.json with components",
        lambda root, options: read_model_package(root, options, load_package),
    ),
    Form(
        PackageForm.INFERENCE_METADATA,
        _has(*(f"inference_metadata.{ending}" for ending in ("yaml", "yml", "json"))),
        "inference_metadata.yaml, .yml or .json",
        read_metadata,
    ),
    Form(PackageForm.GENAI, _has(CONFIG_FILE), CONFIG_FILE, read_genai),
    Form(
        PackageForm.HUGGING_FACE,
        _is_hugging_face,
        "config.json with *.onnx or onnx/*.onnx",
        read_hugging_face,
    ),
    Form(PackageForm.BARE, _is_bare, "*.onnx or onnx/*.onnx with tokenizer.json", read_bare),
)
"""In order: the first form that matches is the directory's."""

_CHOOSE = LoadOptions()


def load_package(directory: Path, options: LoadOptions = _CHOOSE) -> ModelPackage:
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
        if form.matches(root):
            return form.read(root, options)
    looked = "; ".join(form.sign for form in FORMS)
    raise InvalidPackage(
        f"{root} holds no model", why=f"none of these is there: {looked}", fix="Check the path"
    )
