"""An `inference_metadata` or `execution_hints` file as a `Section`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.document import Section, check_text, not_json, read_text
from tokenmill.package.metadata.yaml_values import (
    MAX_BYTES,
    MAX_DEPTH,
    YamlProblem,
    read_yaml,
)

DOCUMENTS = tuple(f"inference_metadata.{ending}" for ending in ("yaml", "yml", "json"))
_FIX = "Correct the file, or export the package again"


def find_document(root: Path) -> Path:
    """Returns the document of a directory, the first of `DOCUMENTS` that is there.

    Raises:
        InvalidPackage: there is none, or there are two.
    """
    found = [root / name for name in DOCUMENTS if (root / name).is_file()]
    if not found:
        raise InvalidPackage(f"{root} has none of {', '.join(DOCUMENTS)}", fix="Check the path")
    if len(found) > 1:
        raise InvalidPackage(
            f"{root} has {found[0].name} and {found[1].name}",
            why="two descriptions of one package",
            fix="Remove one of them",
        )
    return found[0]


def read_metadata_file(file: Path) -> Section:
    """Reads YAML, or JSON by the file's ending.

    Raises:
        InvalidPackage: too large, malformed, a field twice, or not an object; with the place.
    """
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InvalidPackage(f"cannot read {file}", why=error.strerror or str(error)) from None
    if size > MAX_BYTES:
        raise InvalidPackage(f"{file} has {size} bytes", why=f"at most {MAX_BYTES} are read")
    text = read_text(file)
    value = _json(file, text) if file.suffix == ".json" else _yaml(file, text)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "nothing"}.get(type(value), "one value")
        raise InvalidPackage(f"{file}", why=f"it holds {kind}, not an object", fix=_FIX)
    check_text(file, value)
    return Section(file, "", value)


def _yaml(file: Path, text: str) -> Any:
    try:
        return read_yaml(text)
    except YamlProblem as problem:
        what = f"{file}: {problem.path}" if problem.path else f"{file} is not valid"
        raise InvalidPackage(what, why=problem.why, fix=_FIX) from None


def _json(file: Path, text: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, value in items:
            if name in out:
                raise InvalidPackage(f"{file}: {name}", why="the field is there twice", fix=_FIX)
            out[name] = value
        return out

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a finite number")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise not_json(file, error) from None
    if _depth(value) > MAX_DEPTH:
        why = f"it is nested more than {MAX_DEPTH} deep"
        raise InvalidPackage(f"{file} is not valid", why=why, fix=_FIX)
    return value


def _depth(value: Any) -> int:
    """Returns how deep lists and objects are nested, up to one more than is allowed."""
    depth, level = 0, [value]
    while depth <= MAX_DEPTH:
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            break
        depth += 1
    return depth
