"""Reads a model package: manifest.json, and the one variant in it that fits this machine.

A variant's directory is a package of another form. A tokenizer that it lacks is taken from the
model package's root or from a shared asset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.confined import check_links, confined_path
from tokenmill.package.document import Section, read_document
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.manifest import MANIFEST_FILE, Manifest, Variant, read_manifest
from tokenmill.package.model_package import Ignored, ModelPackage, PackageForm
from tokenmill.package.shared_assets import check_asset
from tokenmill.package.variant_choice import choose_variant, short_name

_GENAI = "genai_config.json"
_DESCRIPTIONS = (*(f"inference_metadata.{end}" for end in ("yaml", "yml", "json")), _GENAI)
_TOKENIZER_DIR = f"{_GENAI} model.tokenizer_dir"
_SCHEME = "sha256:"

Reader = Callable[[Path, LoadOptions], ModelPackage]


def read_model_package(root: Path, options: LoadOptions, read: Reader) -> ModelPackage:
    """Reads the package. See `load_package` for what it raises.

    Args:
        root: the directory of manifest.json.
        options: which variant; the rest is handed on.
        read: reads the variant's directory, whatever form that has.
    """
    _refuse_two_descriptions(root)
    manifest = read_manifest(root)
    variant, inner, choice = choose_variant(manifest, options)
    directory = variant.directory(root)
    check_links(root, root)
    for address in manifest.document.section("shared_assets").names():
        check_asset(address, manifest.assets[address], f"{MANIFEST_FILE} shared_assets")
    executor = _executor(root, variant, directory)
    graph = _graph(root, executor, directory)
    within = replace(
        options,
        variant=inner or _graph_to_choose(graph, directory),
        text_directories=tuple(_text_directories(root, manifest, directory)),
    )
    package = read(directory, within)
    if graph is not None and graph.resolve() != package.decoder.file.resolve():
        name = package.decoder.file.relative_to(directory)
        why = f"{executor.text('model_file')!r} is not {str(name)!r}, which the variant describes"
        raise executor.wrong("model_file", why)
    return replace(
        package,
        root=root,
        form=PackageForm.MODEL_PACKAGE,
        choices=(choice, *package.choices),
        provider_options=package.provider_options or _provider_options(variant, executor),
        provenance={**manifest.facts, **package.provenance},
        ignored=(
            *manifest.ignored,
            *_not_executed(variant, executor),
            *(item for item in package.ignored if item.field != _TOKENIZER_DIR),
        ),
    )


def _refuse_two_descriptions(root: Path) -> None:
    for name in _DESCRIPTIONS:
        if os.path.lexists(root / name):
            raise InvalidPackage(
                f"{root} describes two packages",
                why=f"{MANIFEST_FILE} has components, and {name} lies beside it",
                fix="Remove one of them, or give a variant's own directory",
            )


def _executor(root: Path, variant: Variant, directory: Path) -> Section:
    """Returns what the variant says to ONNX Runtime; empty where it says nothing."""
    infos = variant.section.section("executor_info")
    value = infos.raw("ort")
    if not isinstance(value, str):
        return infos.section("ort")
    return read_document(confined_path(root, infos, "ort", value, base=directory))


def _graph(root: Path, executor: Section, directory: Path) -> Path | None:
    """Returns the graph that ONNX Runtime is told to run; refuses weights kept elsewhere."""
    for name in executor.strings("session_options"):
        if name.endswith(("_path", "filepath")):
            raise UnsupportedModel(
                f"{executor.file}: {executor.field('session_options')}.{name}",
                why="weights and compiled graphs are read from beside the graph only",
                fix="Use a variant that keeps them there",
            )
    named = executor.text("model_file")
    if named is None:
        return None
    if named.startswith(_SCHEME):
        raise UnsupportedModel(
            f"{executor.file}: {executor.field('model_file')}",
            why="a graph that is a shared asset is not supported",
            fix="Use a variant that has its own graph",
        )
    return confined_path(root, executor, "model_file", named, base=directory)


def _graph_to_choose(graph: Path | None, directory: Path) -> str | None:
    """Returns the graph's name for a variant whose own files do not say which it is."""
    described = any((directory / name).is_file() for name in _DESCRIPTIONS)
    return None if graph is None or described else graph.relative_to(directory).as_posix()


def _text_directories(root: Path, manifest: Manifest, directory: Path) -> Iterator[Path]:
    """Yields where a tokenizer may lie besides the variant's directory, the nearest first."""
    config = directory / _GENAI
    if config.is_file():
        model = read_document(config).section("model")
        if (named := model.text("tokenizer_dir")) is not None:
            yield _tokenizer_directory(root, manifest, directory, model, named)
    yield root
    declared = manifest.document.section("shared_assets").names()
    for address, path in manifest.assets.items():
        if (path / "tokenizer.json").is_file():
            if address not in declared:
                check_asset(address, path, "its folder")
            yield path


def _tokenizer_directory(
    root: Path, manifest: Manifest, directory: Path, model: Section, named: str
) -> Path:
    base, rest = directory, named
    if named.startswith(_SCHEME):
        address, _, rest = named.partition("/")
        if address not in manifest.assets:
            raise model.wrong("tokenizer_dir", f"the package has no shared asset {address}")
        base = manifest.assets[address]
        check_asset(address, base, _TOKENIZER_DIR)
    path = confined_path(root, model, "tokenizer_dir", rest, base=base) if rest else base
    if not path.is_dir():
        raise model.wrong("tokenizer_dir", f"{named!r} is not a directory")
    return path


def _provider_options(
    variant: Variant, executor: Section
) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """Returns the provider that the variant is made for, where its own files name none."""
    options = executor.strings("provider_options")
    if variant.ep is None or (short_name(variant.ep) == "cpu" and not options):
        return ()
    return ((variant.ep, options),)


def _not_executed(variant: Variant, executor: Section) -> Iterator[Ignored]:
    section = variant.section
    compatibility = section.text("compatibility_string")
    if compatibility is not None:
        why = "only its execution provider can read it"
        yield Ignored(section.evidence("compatibility_string"), compatibility, why)
    infos = section.section("executor_info")
    for name in infos.names():
        if name != "ort":
            yield Ignored(infos.evidence(name), infos.brief(name), "it is for another runtime")
    settings = executor.section("session_options")
    for name, value in executor.strings("session_options").items():
        yield Ignored(settings.evidence(name), value, "sessions are set up by this engine")
    for field, value in executor.unused():
        yield Ignored(f"{executor.file.name} {field}", value, "not known to this version")
