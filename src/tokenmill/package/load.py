"""A directory becomes a `ModelPackage`: which form it has, and who reads that form."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import InvalidOption, InvalidPackage
from tokenmill.package.bare import read_bare
from tokenmill.package.chosen_template import with_template
from tokenmill.package.document import read_document
from tokenmill.package.genai import CONFIG_FILE, SIDECAR_FILE, read_genai
from tokenmill.package.graph_files import graph_files
from tokenmill.package.hugging_face import read_hugging_face
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.metadata.read import read_metadata
from tokenmill.package.model_package import ModelPackage, PackageForm
from tokenmill.package.other_contents import no_model, refuse_pointers
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

_ONE_GRAPH = (PackageForm.GENAI, PackageForm.INFERENCE_METADATA)
"""Forms whose document names the one graph."""

_CHOOSE = LoadOptions()


def load_package(directory: Path, options: LoadOptions = _CHOOSE) -> ModelPackage:
    """Reads what a model is. Loads no weights, and imports no graph library.

    Raises:
        InvalidPackage: not a directory, nothing recognisable in it, or something wrong with what
            is there; the message names file and field or port.
        UnsupportedModel: a sound package that needs what is not supported.
        InvalidOption: a variant or a chat template that the package does not have.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise InvalidPackage(f"{directory} is not a directory", fix="Give a model's directory")
    refuse_pointers(root)
    for form in FORMS:
        if form.matches(root):
            return _as_wanted(form, form.read(root, options), options)
    raise no_model(root, "; ".join(form.sign for form in FORMS))


def _as_wanted(form: Form, package: ModelPackage, options: LoadOptions) -> ModelPackage:
    """Returns the package with what is chosen for every form alike."""
    if form.form in _ONE_GRAPH and options.variant is not None:
        _check_variant(package, options.variant)
    if options.chat_template is None:
        return package
    return replace(package, text=with_template(package.text, options.chat_template))


def _check_variant(package: ModelPackage, variant: str) -> None:
    """Refuses a variant of a directory that has one graph, unless it chose that before."""
    file, root = package.decoder.file, package.root
    if variant in (file.name, file.stem) or root.as_posix().endswith(f"/{variant}"):
        return
    # Of several GGUF files it chose the one that this was made from.
    if (root / SIDECAR_FILE).is_file():
        return
    raise InvalidOption(
        f"variant is {variant!r}",
        why=f"{root} describes one decoder, {file.name}",
        fix="Leave it out, or give the directory of the variant that is meant",
    )
