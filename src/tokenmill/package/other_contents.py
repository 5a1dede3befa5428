"""Directories that look like a model's and hold something else, told by what they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tokenmill.core.errors import InvalidPackage

_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER = 1024
"""Pointers are of some 130 bytes."""
_FOLDERS = ("", "onnx")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def refuse_pointers(root: Path) -> None:
    """Raises `InvalidPackage` where files are the pointers that Git LFS puts in their place.

    Args:
        root: the directory; `onnx` in it is looked at, too.
    """
    pointers = sorted(_pointers(root))
    if pointers:
        first = pointers[0].relative_to(root)
        others = f" and {len(pointers) - 1} more" if len(pointers) > 1 else ""
        raise InvalidPackage(
            f"{root} was cloned without its large files",
            why=f"{first}{others} only say where Git LFS keeps the content"
            if others
            else f"{first} only says where Git LFS keeps the content",
            fix="Run `git lfs pull` there, or let `tokenmill pull` fetch the repository",
        )


def is_pointer(file: Path) -> bool:
    """Whether a file is a Git LFS pointer. One that cannot be read is none."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_POINTER:
            return False
        with file.open("rb") as opened:
            return opened.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def no_model(root: Path, looked_for: str) -> InvalidPackage:
    """Returns the error for a directory of no form.

    Args:
        looked_for: what would have been recognised.
    """
    weights = sorted(path for pattern in _WEIGHTS for path in root.glob(pattern))
    if weights:
        return InvalidPackage(
            f"{root} holds weights without an ONNX graph",
            why=f"{weights[0].name} is for PyTorch, and there is no *.onnx",
            fix="Export the model, e.g. with `optimum-cli export onnx --task "
            "text-generation-with-past` or onnxruntime-genai's model builder, or take a "
            "repository that has ONNX or GGUF files",
        )
    return InvalidPackage(
        f"{root} holds no model", why=f"none of these is there: {looked_for}", fix="Check the path"
    )


def _pointers(root: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        try:
            names = os.listdir(root / folder)
        except OSError:
            continue
        yield from (file for name in names if is_pointer(file := root / folder / name))
