"""What a document says of a port's type and shape, held against the graph."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, required_text
from tokenmill.package.model_package import Port
from tokenmill.package.onnx_file import OnnxFile

_CONTRACT = ("dtype", "rank", "shape", "optional", "batch_layout")
_SPELLINGS = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def check_contract(reading: Reading, contract: Section, port: Port | None = None) -> None:
    """Checks a tensor contract by itself, and against a port where one is given.

    Args:
        contract: with `dtype` and `rank`, and perhaps `shape`.
        port: of the graph.

    Raises:
        InvalidPackage: it contradicts itself or the port; names the field.
    """
    reading.only(contract, (*_CONTRACT, "name"))
    dtype = required_text(contract, "dtype")
    rank = contract.integer("rank", high=64)
    contract.boolean("optional")
    layout = contract.section("batch_layout")
    if layout.names():
        reading.only(layout, ("kind", "axis", "factor", "offsets", "owner"))
        required_text(layout, "kind")
    shape = _shape(contract)
    if shape is not None and rank is not None and len(shape) != rank:
        raise contract.wrong("shape", f"it has {len(shape)} sizes where the rank is {rank}")
    if port is None:
        return
    what = f"the port {port.name!r} of the graph"
    if _SPELLINGS.get(dtype, dtype) != port.dtype:
        raise contract.wrong("dtype", f"it is {dtype}, and {what} is {port.dtype}")
    if rank is not None and rank != len(port.shape):
        raise contract.wrong("rank", f"it is {rank}, and {what} has {len(port.shape)} axes")
    for axis, size in enumerate(shape or ()):
        real = port.shape[axis] if axis < len(port.shape) else size
        if isinstance(size, int) and isinstance(real, int) and size != real:
            raise contract.wrong(f"shape[{axis}]", f"it is {size}, and {what} has {real} there")


def find_port(graph: OnnxFile, name: str, *, is_input: bool) -> Port | None:
    """Returns the graph's port of that name, or None."""
    ports: Iterable[Port] = graph.inputs if is_input else graph.outputs
    return next((port for port in ports if port.name == name), None)


def lacks(graph: OnnxFile, name: str, *, is_input: bool) -> str:
    """Returns the sentence that a graph has no such port, with those that it has."""
    names = [port.name for port in (graph.inputs if is_input else graph.outputs)]
    kind = "input" if is_input else "output"
    some = f"{', '.join(names[:6]) or 'none'}{' ...' if len(names) > 6 else ''}"
    return f"{graph.path.name} has no {kind} called {name!r}; it has {some}"


def _shape(contract: Section) -> list[int | str] | None:
    shape = contract.raw("shape")
    if shape is None:
        return None
    if not isinstance(shape, list):
        raise contract.wrong("shape", "it is not a list of sizes and names")
    for axis, size in enumerate(shape):
        is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
        if not is_size and not (isinstance(size, str) and size):
            raise contract.wrong(f"shape[{axis}]", "it is neither a size nor a name")
    return shape
