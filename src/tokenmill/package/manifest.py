"""manifest.json of a model package: one component, and its variants.

The format is that of ONNX Runtime's model package library, schema 1. Paths are those of the
portable layout: inside the package, wherever it lies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.confined import check_relative, confined_path
from tokenmill.package.document import Section, read_document
from tokenmill.package.model_package import Ignored
from tokenmill.package.shared_assets import find_shared_assets

MANIFEST_FILE = "manifest.json"
COMPONENT_FILE = "component.json"

_MAJOR, _KNOWN_MINOR = 1, 0
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_DEVICES = ("cpu", "gpu", "npu")
_FACTS = ("package_name", "package_version", "description")


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of the model.

    Attributes:
        name: as in the document.
        base: the directory that `location` is relative to.
        location: of the variant's files; they may be missing.
        ep: the provider that it is made for, as it is written there; None for any.
        device: "cpu", "gpu" or "npu"; None for any.
        section: its object in the document, for what else it says.
    """

    name: str
    base: Path
    location: str
    ep: str | None
    device: str | None
    section: Section

    def directory(self, root: Path) -> Path:
        """Returns where its files are, in the package at `root`.

        Raises:
            InvalidPackage: nothing is there, it leads out of the package, or is no plain package.
        """
        field = "variant_directory"
        path = confined_path(root, self.section, field, self.location, base=self.base)
        if not path.is_dir():
            raise self.section.wrong(field, f"{self.location!r} is not a directory")
        inner = path / MANIFEST_FILE
        if inner.is_file() and "components" in read_document(inner):
            why = f"{self.location} holds another model package"
            raise self.section.wrong(field, why, "A variant is a package of another form")
        return path


@dataclass(frozen=True, slots=True)
class Manifest:
    """What manifest.json says.

    Attributes:
        document: the whole of it.
        component: the only component's name.
        variants: in the document's order; at least one.
        assets: address, "sha256:...", to file or directory.
        facts: package_name, package_version and description, where they are given.
        ignored: what is not used.
    """

    document: Section
    component: str
    variants: tuple[Variant, ...]
    assets: Mapping[str, Path]
    facts: Mapping[str, str]
    ignored: tuple[Ignored, ...]


def read_manifest(root: Path) -> Manifest:
    """Reads the manifest and the component's own document; looks at no variant's files.

    Raises:
        InvalidPackage: malformed, or something leads out of the package; names file and field.
        UnsupportedModel: another major version, the installed layout, or several components.
    """
    document = read_document(root / MANIFEST_FILE)
    newer = _is_newer(document)
    _require_portable(document)
    components = document.section("components")
    names = components.names()
    if len(names) != 1:
        raise UnsupportedModel(
            f"{document.file} components has {len(names)}: {', '.join(names) or 'none'}",
            why="this version runs single decoders",
        )
    body, base = _component(root, components, names[0])
    variants = body.section("variants")
    if not variants.names():
        raise body.wrong("variants", "there is none")
    found = tuple(_variant(root, base, variants, name) for name in variants.names())
    facts = {name: text for name in _FACTS if (text := document.text(name)) is not None}
    body.text("component_name")
    assets = find_shared_assets(root, document)
    parts = [(document, "a manifest"), (body, "a component")]
    parts += [(variant.section, "a variant") for variant in found]
    return Manifest(
        document=document,
        component=names[0],
        variants=found,
        assets=assets,
        facts=facts,
        ignored=tuple(_unknown(parts, newer=newer)),
    )


def _is_newer(document: Section) -> bool:
    """Checks the schema's version; returns whether it may have fields that we do not know."""
    value = document.raw("schema_version")
    if value is None:
        raise document.wrong("schema_version", "it is missing")
    # Earlier packages have the major version alone, as a number.
    text = f"{value}.0" if isinstance(value, int) and not isinstance(value, bool) else value
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise document.wrong("schema_version", f"{value!r} is not <major>.<minor>")
    if int(match[1]) != _MAJOR:
        why = f"it is {value!r}, and this version reads {_MAJOR}.x"
        raise UnsupportedModel(
            f"{document.file}: schema_version", why=why, fix="Use a package of that version"
        )
    return int(match[2]) > _KNOWN_MINOR


def _require_portable(document: Section) -> None:
    layout = document.text("layout")
    if layout == "installed":
        raise UnsupportedModel(
            f"{document.file} layout is 'installed'",
            why="such a package may name files anywhere on the machine, and is not trusted",
            fix="Use the portable package, or give a variant's own directory",
        )
    if layout not in (None, "portable"):
        raise document.wrong("layout", f"{layout!r} is neither 'portable' nor 'installed'")


def _component(root: Path, components: Section, name: str) -> tuple[Section, Path]:
    """Returns the component's body, and the directory that its variants are relative to."""
    value = components.raw(name)
    if isinstance(value, dict):
        return Section(components.file, components.field(name), value), root
    if not isinstance(value, str):
        raise components.wrong(name, f"{components.brief(name)} is not an object or a path")
    file = confined_path(root, components, name, value)
    if file.is_dir():
        file = confined_path(root, components, name, COMPONENT_FILE, base=file)
    return read_document(file), file.parent


def _variant(root: Path, base: Path, variants: Section, name: str) -> Variant:
    value = variants.raw(name)
    if not isinstance(value, dict):
        raise variants.wrong(name, f"{variants.brief(name)} is not an object")
    section = Section(variants.file, variants.field(name), value)
    device = section.text("device")
    if device is not None and device not in _DEVICES:
        raise section.wrong("device", f"{device!r} is none of {', '.join(_DEVICES)}")
    written = section.text("variant_directory")
    location = name if written is None else written
    check_relative(section, "variant_directory", location)
    if os.path.lexists(base / location):
        confined_path(root, section, "variant_directory", location, base=base)
    return Variant(name, base, location, section.text("ep") or None, device, section)


def _unknown(parts: list[tuple[Section, str]], *, newer: bool) -> Iterator[Ignored]:
    """Yields unknown fields where the schema is newer than ours, and refuses them where not."""
    for section, kind in parts:
        for field in ("additional_metadata", "executor_info", "compatibility_string"):
            section.raw(field)
        for field, value in section.unused():
            if not newer:
                name = field.removeprefix(f"{section.path}.")
                raise section.wrong(name, f"there is no such field in {kind}", "Correct the name")
            why = "of a newer schema than this version knows"
            yield Ignored(f"{section.file.name} {field}", value, why)
