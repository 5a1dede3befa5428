"""What a caller wants of a package that offers several, or says more than is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.provider import parse_provider


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a package is read.

    Attributes:
        variant: the name of a variant, precision or graph file to take; None chooses.
        providers: execution providers to run on, by short name ("cpu", "cuda"), in order of
            preference; empty is the CPU. Variants are chosen by them.
        lossy: go on without fields that would change the output and are not executed; each is
            listed in `ModelPackage.losses`. Else they are errors.
        chat_template: in place of the package's own: the name of one of its templates, or a file.
        text_directories: where the tokenizer's files are looked for when the directory itself
            has none; set by the reader of model packages.
    """

    variant: str | None = None
    providers: tuple[str, ...] = ()
    lossy: bool = False
    chat_template: str | None = None
    text_directories: tuple[Path, ...] = ()

    def text_directory(self, root: Path) -> Path:
        """Returns where the tokenizer's files of the package in `root` are."""
        for directory in (root, *self.text_directories):
            if (directory / "tokenizer.json").is_file():
                return directory
        return root


def load_options(values: Mapping[str, Any]) -> LoadOptions:
    """Returns what resolved options of the scope MODEL say of reading a package."""
    return LoadOptions(
        variant=values["variant"],
        providers=tuple(_short_name(text) for text in values["ep"]),
        lossy=values["lossy"],
        chat_template=values["chat_template"],
    )


def _short_name(provider: str) -> str:
    """Returns "cuda" for "CUDAExecutionProvider|device_id=1".

    Of a plug-in it is the provider that `ep=` names, else its path: the library is not loaded here.
    """
    parsed = parse_provider(provider)
    if parsed.library is not None and not parsed.name:
        return f"plugin:{parsed.library}"
    return parsed.name.removesuffix("ExecutionProvider").lower()
