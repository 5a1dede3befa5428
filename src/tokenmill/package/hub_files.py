"""Which files of a hub repository a model needs, from their names alone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tokenmill.core.errors import InvalidOption, InvalidPackage
from tokenmill.package.graph_files import (
    GraphFile,
    by_preference,
    graph_file,
    refuse_companions,
)
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.onnx_file import read_onnx

_MANIFEST = "manifest.json"
_DOCUMENTS = (
    "inference_metadata.yaml",
    "inference_metadata.yml",
    "inference_metadata.json",
    "genai_config.json",
)
_TEXT = (".json", ".jinja", ".txt", ".model", ".yaml", ".yml")


def pick_files(names: Sequence[str], options: LoadOptions) -> tuple[str, ...]:
    """Returns what to fetch of a repository's files.

    A Hugging Face export has its decoder in several precisions; one of them is fetched, the one
    that would be read if all were there. A repository of GGUF files has one of them fetched, one of
    several packages in folders is, and every other repository is fetched whole.

    Raises:
        InvalidOption: the variant is not there, or one must be named and is not.
        UnsupportedModel: the export is not a single decoder.
    """
    folders = package_folders(names)
    if "" in folders:
        return tuple(names)
    if folders:
        chosen = choose_folder(folders, options.variant)
        return tuple(name for name in names if name.startswith(f"{chosen}/") or _is_text(name))
    graphs = [graph_file(Path(), name) for name in names if _is_graph(name)]
    if graphs and "config.json" in names:
        return _export(names, graphs, options)
    weights = [name for name in names if name.lower().endswith(".gguf")]
    if weights and not graphs:
        kept = choose_gguf(weights, options.variant, "the repository")
        return tuple(name for name in names if name == kept)
    return tuple(names)


def files_of_weights(
    directory: Path, names: Sequence[str], repository: Sequence[str]
) -> tuple[str, ...]:
    """Returns the repository's files in which graphs that have been fetched keep weights.

    Args:
        directory: what has been fetched.
        names: what was chosen; graphs among these that are there are read.
        repository: the names of all its files; nothing else is returned.
    """
    wanted: set[str] = set()
    for name in names:
        if name.endswith(".onnx") and (directory / name).is_file():
            with contextlib.suppress(InvalidPackage):  # reading the package will say why
                graph = read_onnx(directory / name)
                folder = PurePosixPath(name).parent
                wanted |= {
                    (folder / one.location).as_posix() for one in graph.initializers if one.location
                }
    return tuple(name for name in repository if name in wanted)


def package_folders(names: Iterable[str]) -> list[str]:
    """Returns the folders that hold a package's document; "" is the root."""
    paths = [PurePosixPath(name) for name in names]
    found = {path.parent.as_posix() for path in paths if path.name in _DOCUMENTS}
    if _MANIFEST in {path.as_posix() for path in paths}:
        return [""]
    return sorted("" if folder == "." else folder for folder in found)


def choose_folder(folders: Sequence[str], variant: str | None) -> str:
    """Returns the one folder, or the one that the variant names by its path or the end of it.

    Raises:
        InvalidOption: none is meant, or several are.
    """
    if len(folders) == 1 and variant is None:
        return folders[0]
    meant = [folder for folder in folders if _means(variant or "", folder)]
    if len(meant) == 1 or len(folders) == 1:
        return (meant or list(folders))[0]
    raise InvalidOption(
        f"the repository holds {len(folders)} models"
        if variant is None
        else f"variant is {variant!r}",
        why=f"there are {', '.join(folders[:12])}",
        fix="Give one of these names with --variant, or choose files with --files",
    )


def _means(variant: str, folder: str) -> bool:
    return variant == folder or (bool(variant) and f"/{folder}".endswith(f"/{variant}"))


def _is_graph(name: str) -> bool:
    return name.endswith(".onnx") and name.rpartition("/")[0] in ("", "onnx")


def _export(
    names: Sequence[str], graphs: Sequence[GraphFile], options: LoadOptions
) -> tuple[str, ...]:
    refuse_companions(graphs)
    chosen = by_preference(graphs, options.variant, options.providers)[0]
    return tuple(
        name
        for name in names
        if name == chosen.name or _is_data_of(name, chosen, graphs) or _is_text(name)
    )


def _is_text(name: str) -> bool:
    folder, _, _ = name.rpartition("/")
    return name.endswith(_TEXT) and folder in ("", "additional_chat_templates")


def _is_data_of(name: str, chosen: GraphFile, graphs: Sequence[GraphFile]) -> bool:
    """Returns whether a file holds weights of the chosen graph: it has its name, or nobody's."""
    if name.rpartition("/")[0] != chosen.name.rpartition("/")[0] or _is_graph(name):
        return False
    owners = [graph.name for graph in graphs if name.startswith(graph.name)]
    if owners:
        return chosen.name in owners
    return name.endswith((".data", ".onnx_data"))


def choose_gguf(names: Sequence[str], variant: str | None, place: str) -> str:
    """Returns the one GGUF file, or the one that the variant names by a part of its name.

    The whole name goes before a part between two separators ("f16" is not "bf16", and "q4_0" not
    "q4_0_4_4"), and that before any part.

    Raises:
        InvalidOption: none is meant, or several are; names the place.
    """
    if len(names) == 1 and variant is None:
        return names[0]
    wanted = (variant or "").lower()
    meant = [name for name in names if wanted and wanted in name.lower()]
    exact = [name for name in meant if name.lower() in (wanted, f"{wanted}.gguf")]
    part = re.compile(rf"(?<![a-z0-9_]){re.escape(wanted)}(?![a-z0-9_])")
    chosen = exact or [name for name in meant if part.search(name.lower())] or meant
    if len(chosen) == 1:
        return chosen[0]
    raise InvalidOption(
        f"{place} holds {len(names)} GGUF files" if variant is None else f"variant is {variant!r}",
        why=f"{place} has {', '.join(names[:12])}",
        fix="Give a part of one name with --variant, such as its precision",
    )
