"""The graph and the weights beside it: are they there, whole, and inside the package?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenmill.core.errors import CorruptFile, InvalidPackage
from tokenmill.package.onnx_file import Initializer, OnnxFile


def check_external_data(graph: OnnxFile, root: Path) -> None:
    """Checks that graph and weights lie inside the package, and the weights are there, and whole.

    Args:
        graph: as read.
        root: the package's directory. Links that lead out of it are refused, but for those into
            the `blobs` folder of a hub cache (`snapshots/<commit>` beside `blobs`).

    Raises:
        InvalidPackage: a graph or a location that leads out of the package; names it.
        CorruptFile: a file that is missing or too short, or a length that does not fit the shape.
    """
    if not is_inside(graph.path.resolve(), root):
        raise InvalidPackage(
            f"{graph.path} is a link out of {root}",
            why=f"it leads to {graph.path.resolve()}",
            fix="Graphs must lie in the package's own directory",
        )
    sizes: dict[str, int] = {}
    for tensor in graph.initializers:
        if tensor.location is None:
            continue
        if tensor.location not in sizes:
            sizes[tensor.location] = _external_size(graph, tensor, root)
        what = f"the weights {tensor.name!r} of {graph.path}"
        if tensor.length not in (-1, tensor.nbytes):
            why = f"{tensor.length} bytes are declared where the shape asks for {tensor.nbytes}"
            raise CorruptFile(what, why=why, fix="Export the package again")
        end, size = tensor.offset + tensor.nbytes, sizes[tensor.location]
        if end > size:
            raise CorruptFile(
                what,
                why=f"they end at byte {end} of {tensor.location!r}, which has {size}",
                fix="Fetch the file again; it is cut off or belongs to another graph",
            )


def _external_size(graph: OnnxFile, tensor: Initializer, root: Path) -> int:
    what = f"the weights {tensor.name!r} of {graph.path}"
    location = tensor.location or ""
    path = external_path(graph, location)

    def refuse(why: str) -> InvalidPackage:
        return InvalidPackage(what, why=why, fix="Weights must lie in the package's own directory")

    if not location or "\0" in location:
        raise refuse("external data without a location")
    # ONNX Runtime takes this location for a pointer into the process's own memory.
    if "_ORT_MEM_ADDR_" in location:
        raise refuse(f"{location!r} is an address in memory, not a file")
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise refuse(f"{location!r} leads out of {root}")
    try:
        resolved = path.resolve(strict=True)
        if not is_inside(resolved, root):
            raise refuse(f"{location!r} is a link out of {root}, to {resolved}")
        if not resolved.is_file():
            raise refuse(f"{location!r} is not a file")
        return resolved.stat().st_size
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CorruptFile(
            what, why=f"{path}: {why}", fix="Fetch the package again, with all its files"
        ) from None


def is_inside(resolved: Path, root: Path) -> bool:
    """Returns whether a path without links lies in the package, or in its hub cache's blobs."""
    return any(resolved.is_relative_to(home) for home in _homes(root))


def external_path(graph: OnnxFile, location: str) -> Path:
    """Returns the path of external data: locations are relative to the graph's directory."""
    return graph.path.parent / location


def _homes(root: Path) -> Iterator[Path]:
    resolved = root.resolve()
    yield resolved
    for folder in (resolved, *resolved.parents):
        if folder.parent.name == "snapshots":
            yield folder.parent.parent / "blobs"
