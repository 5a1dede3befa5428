"""What a user types for MODEL becomes a directory that `load_package` reads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tokenmill.core.errors import InvalidPackage, ModelNotFound
from tokenmill.package import hub
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import HubEntry, pull, read_catalogue
from tokenmill.package.graph_files import graph_files
from tokenmill.package.hub_files import choose_folder, choose_gguf, package_folders
from tokenmill.package.identity import IDENTITY_LENGTH, content_identity
from tokenmill.package.load_options import LoadOptions, load_options
from tokenmill.package.other_contents import is_pointer

Progress = Callable[[str, int, int], None]

_CHOOSE = LoadOptions()

IMPORTER = 1
"""Counts up when an import's result changes, so that older ones are made anew."""


def resolve_model(
    text: str,
    cache: Cache,
    *,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
    offline: bool = False,
    allow_pull: bool = True,
    precision: str = "keep",
    options: LoadOptions = _CHOOSE,
    progress: Progress | None = None,
) -> Path:
    """Returns a model's directory; fetches and imports where that has not been done before.

    Args:
        text: a directory, a GGUF file, a catalogue name, or a hub id.
        cache: where fetched and imported models are kept.
        revision, patterns: for hub ids; see `hub.fetch`.
        offline: use only what is here.
        allow_pull: fetch a catalogue's model that is not in the cache; else it is an error.
        precision: for GGUF files: "keep", "fp32", "int8" or "int4".
        options: which variant, where there are several.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        ModelNotFound: nothing of that name; the message says what was tried.
        DownloadFailed: it is known and could not be fetched.
        InvalidPackage: a GGUF file that cannot be imported.
        InvalidOption: several models are there, and the variant names none of them.
    """
    path, is_directory, is_file = _look(text)
    if is_directory:
        return _with_gguf(path, cache, options, precision, progress)
    if is_file:
        return import_file(path, cache, precision=precision, progress=progress)
    entry = read_catalogue().get(text)
    if isinstance(entry, HubEntry):
        revision, patterns = revision or entry.revision, patterns or entry.files
        text, offline = entry.repository, offline or not allow_pull
    elif entry is not None:
        file = pull(entry, cache, offline=offline or not allow_pull, progress=progress)
        cache.touch(file)
        return import_file(file, cache, precision=precision, progress=progress)
    elif any(path.name == text for path in _imports(cache)):
        cache.touch(cache.imports / text)
        return cache.imports / text
    elif not hub.is_hub_id(text):
        raise _not_found(text)
    directory = hub.fetch(
        text,
        cache,
        revision=revision,
        patterns=patterns or None,
        offline=offline,
        options=options,
        progress=progress,
    )
    cache.touch(directory)
    package = _only_package(directory, patterns, options.variant)
    return _with_gguf(package, cache, options, precision, progress, patterns=patterns, deep=True)


def resolve_with_options(
    text: str, cache: Cache, options: Mapping[str, Any], progress: Progress | None = None
) -> tuple[Path, Mapping[str, Any]]:
    """Does `resolve_model` with the resolved options of the scope MODEL, as every door has them.

    Returns:
        The directory, and the options to load it with: a name of the catalogue may stand for a
        variant, which holds where the caller names none.
    """
    loaded = _with_variant_of_catalogue(text, options)
    directory = resolve_model(
        text,
        cache,
        revision=loaded["revision"],
        patterns=loaded["files"] or None,
        offline=loaded["offline"],
        precision=loaded["precision"],
        options=load_options(loaded),
        progress=progress,
    )
    return directory, loaded


def _with_variant_of_catalogue(text: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    _, is_directory, is_file = _look(text)
    if options["variant"] is not None or is_directory or is_file:
        return options
    entry = read_catalogue().get(text)
    variant = entry.variant if isinstance(entry, HubEntry) else None
    return options if variant is None else {**options, "variant": variant}


def import_file(
    file: Path,
    cache: Cache,
    *,
    output: Path | None = None,
    precision: str = "keep",
    progress: Progress | None = None,
) -> Path:
    """Returns the directory made from a GGUF file; made once for each content and precision.

    Args:
        output: where to write it; None takes the cache, and what is there already.

    Raises:
        ModelNotFound: there is no such file.
        InvalidPackage: it is not a GGUF file, or one that cannot be imported.
    """
    if not file.is_file():
        raise ModelNotFound(f"there is no file {file}", fix="Check the path")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            if file.suffix == ".onnx":
                raise InvalidPackage(
                    f"{file} is a graph, and a model is a directory",
                    why="its tokenizer and configuration lie beside it",
                    fix=f"Give {file.parent}; where that has several graphs, choose this one with "
                    f"--variant {file.name}",
                )
            if is_pointer(file):
                raise InvalidPackage(
                    f"{file} is not the model, but what Git LFS puts in its place",
                    why="it only says where the content is kept",
                    fix="Run `git lfs pull` there, or fetch the file again",
                )
            raise InvalidPackage(
                f"{file} is not a GGUF file",
                why="it does not begin with the letters GGUF",
                fix="Give a .gguf file, or the directory of an ONNX model",
            )
    from tokenmill.package.gguf.importer import import_gguf

    if output is not None:
        return import_gguf(file, output, precision=precision, progress=progress)
    identity = f"{content_identity(file)[:IDENTITY_LENGTH]}-{IMPORTER}"
    destination = cache.imports / f"{file.stem}-{precision}-{identity}"
    if destination.is_dir():
        cache.touch(destination)
        return destination
    with cache.lock(destination.name):
        if not destination.is_dir():
            destination.parent.mkdir(parents=True, exist_ok=True)
            import_gguf(file, destination, precision=precision, progress=progress)
    return destination


def _look(text: str) -> tuple[Path, bool, bool]:
    """Returns the text as a path, and whether a directory or a file is there."""
    try:
        path = Path(text).expanduser()
        return path, bool(text) and path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, not allowed, no such user
        return Path(text), False, False


def _imports(cache: Cache) -> Iterator[Path]:
    """Yields the directories that were imported before, whole ones only."""
    if cache.imports.is_dir():
        for path in cache.imports.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                yield path


def _only_package(directory: Path, patterns: Sequence[str] | None, variant: str | None) -> Path:
    """Returns the folder with the package that is meant; a snapshot may hold others, too."""
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*.*")]
    folders = package_folders(name for name in names if _matches(name, patterns))
    if not folders or "" in folders:
        return directory
    return directory / choose_folder(folders, variant)


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def _with_gguf(
    directory: Path,
    cache: Cache,
    options: LoadOptions,
    precision: str,
    progress: Progress | None,
    *,
    patterns: Sequence[str] | None = None,
    deep: bool = False,
) -> Path:
    """Returns the directory, or the import of a GGUF file where it holds nothing else.

    Args:
        deep: look into folders, too, as repositories have them.
    """
    files = sorted(directory.rglob("*.gguf") if deep else directory.glob("*.gguf"))
    names = [file.relative_to(directory).as_posix() for file in files]
    names = [name for name in names if _matches(name, patterns)]
    is_package = bool(graph_files(directory)) or "" in package_folders(
        path.name for path in directory.glob("*.*")
    )
    if not names or is_package:
        return directory
    file = directory / choose_gguf(names, options.variant, str(directory))
    return import_file(file, cache, precision=precision, progress=progress)


def _not_found(text: str) -> ModelNotFound:
    names = sorted(read_catalogue())
    close = difflib.get_close_matches(text.lower(), names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"The catalogue has {', '.join(names)}"
    return ModelNotFound(
        f"there is no model {text!r}",
        why="it is no directory, no file, no name in the catalogue or the cache, "
        "and no hub id (org/name)",
        fix=hint,
    )
