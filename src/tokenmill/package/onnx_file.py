"""An ONNX file's header: ports, operators and where the weights lie, without loading them.

The `onnx` library takes a fifth of a second to import and reads the whole file; `show` and every
start need neither. Field numbers are those of onnx.proto (ONNX 1.23, IR version 14).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.errors import CorruptFile, InvalidPackage
from tokenmill.package.model_package import Port
from tokenmill.package.wire import BYTES, FIXED32, VARINT, Field, Wire, WireError, signed

_DTYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
    27: ("float6_e2m3fn", 6),
    28: ("float6_e3m2fn", 6),
}
"""TensorProto.DataType to the name (as ml_dtypes spells those that NumPy lacks) and its bits."""

_CONTAINERS = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse", 9: "optional"}
_MAX_DEPTH = 32
_MAX_RANK = 64

Attribute = int | float | str | tuple[int, ...]


class Branch(NamedTuple):
    """A subgraph that a node holds.

    Attributes:
        scope: the number that its nodes carry.
        inputs, outputs: names inside it.
    """

    scope: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Node(NamedTuple):
    """An operator of the main graph or of a subgraph.

    Attributes:
        operator: the type, after "domain." where the domain is not ONNX's own.
        inputs: names, "" for an optional one that is absent.
        attributes: those that are a number, a text or a list of whole numbers.
        scope: of the graph it stands in: 0 is the main graph, subgraphs count from 1.
        branches: the subgraphs among its attributes.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    scope: int = 0
    branches: tuple[Branch, ...] = ()


class Initializer(NamedTuple):
    """A weight, and where its bytes are.

    Attributes:
        nbytes: that the type and the sizes ask for.
        location: the file beside the graph that holds it, as written there; None where it is in
            the graph's own file.
        offset: of its bytes in that file; -1 where they are not in one piece.
        length: of its bytes as the file says; -1 where it does not.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    nbytes: int
    location: str | None
    offset: int
    length: int


@dataclass(slots=True)
class OnnxFile:
    """What the header of one ONNX file says.

    Attributes:
        opsets: version by domain; ONNX's own domain is "".
        inputs: ports of the main graph that are not weights.
        nodes, initializers: of the main graph and its subgraphs; the nodes of a subgraph stand
            before the node that holds it.
        functions: (domain, name) of model-local functions.
    """

    path: Path
    file_size: int
    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    initializers: list[Initializer] = field(default_factory=list)
    functions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def operators(self) -> Mapping[str, int]:
        """Operator to number of nodes, most frequent first."""
        return dict(Counter(node.operator for node in self.nodes).most_common())

    @property
    def weight_bytes(self) -> int:
        """Of all initializers, inside the file or beside it; shared bytes count once."""
        unique = {
            (tensor.location, tensor.offset if tensor.offset >= 0 else ~index): tensor.nbytes
            for index, tensor in enumerate(self.initializers)
        }
        return sum(unique.values())


def read_onnx(path: Path) -> OnnxFile:
    """Reads the header of an ONNX file. Weights are skipped, external ones not looked at.

    Raises:
        InvalidPackage: there is no such file.
        CorruptFile: it is empty, cut off or not an ONNX model; the message names the offset.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise CorruptFile(f"{path} is empty", fix="Fetch or export it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(OnnxFile(path, size), data).read()
    except OSError as error:
        raise InvalidPackage(f"cannot read {path}", why=error.strerror or str(error)) from None
    except WireError as error:
        raise CorruptFile(
            f"{path} is damaged at byte {error.offset}",
            why=error.why,
            fix="Fetch or export it again",
        ) from None


class _Reader:
    """Fills one `OnnxFile` from its bytes. Fields that are not named here are skipped."""

    def __init__(self, out: OnnxFile, data: mmap.mmap) -> None:
        self._out, self._wire, self._data = out, Wire(data), data
        self._scopes = 0

    def read(self) -> OnnxFile:
        out, has_graph = self._out, False
        for item in self._wire.fields(0, out.file_size):
            match item.number:
                case 1:
                    out.ir_version = item.require(VARINT).value
                case 2:
                    out.producer = self._wire.text(item)
                case 7:
                    has_graph = True
                    self._graph(item, depth=0, scope=0)
                case 8:
                    domain, version = self._opset(item)
                    out.opsets[domain] = version
                case 14:
                    out.metadata.update([self._pair(item)])
                case 25:
                    out.functions.append(self._function(item))
        if not has_graph:
            raise WireError(out.file_size, "it holds no graph")
        weights = {initializer.name for initializer in out.initializers}
        out.inputs = [port for port in out.inputs if port.name not in weights]
        return out

    def _fields(self, message: Field) -> Iterator[Field]:
        message.require(BYTES)
        return self._wire.fields(message.value, message.stop)

    def _graph(self, message: Field, depth: int, scope: int) -> Branch:
        if depth > _MAX_DEPTH:
            raise WireError(message.value, f"subgraphs are nested more than {_MAX_DEPTH} deep")
        out = self._out
        inputs: list[str] = []
        outputs: list[str] = []
        for item in self._fields(message):
            match item.number:
                case 1:
                    out.nodes.append(self._node(item, depth, scope))
                case 5:
                    out.initializers.append(self._tensor(item))
                case 11 if depth == 0:
                    out.inputs.append(self._port(item, is_input=True))
                case 12 if depth == 0:
                    out.outputs.append(self._port(item, is_input=False))
                case 11:
                    inputs.append(self._port(item, is_input=True).name)
                case 12:
                    outputs.append(self._port(item, is_input=False).name)
                case 15:
                    out.initializers.extend(self._sparse(item))
        return Branch(scope, tuple(inputs), tuple(outputs))

    def _node(self, message: Field, depth: int, scope: int) -> Node:
        text = self._wire.text
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Attribute] = {}
        branches: list[Branch] = []
        name = operator = domain = ""
        for item in self._fields(message):
            match item.number:
                case 1:
                    inputs.append(text(item))
                case 2:
                    outputs.append(text(item))
                case 3:
                    name = text(item)
                case 4:
                    operator = text(item)
                case 5:
                    attributes.update(self._attribute(item, depth, branches))
                case 7:
                    domain = text(item)
        if domain not in ("", "ai.onnx"):
            operator = f"{domain}.{operator}"
        return Node(
            operator, name, tuple(inputs), tuple(outputs), attributes, scope, tuple(branches)
        )

    def _attribute(
        self, message: Field, depth: int, branches: list[Branch]
    ) -> Iterator[tuple[str, Attribute]]:
        name = ""
        value: Attribute | None = None
        numbers: list[int] = []
        for item in self._fields(message):
            match item.number:
                case 1:
                    name = self._wire.text(item)
                case 2:
                    item.require(FIXED32)
                    (value,) = struct.unpack("<f", self._data[item.value : item.stop])
                case 3:
                    value = signed(item.require(VARINT).value)
                case 4:
                    item.require(BYTES)
                    value = self._data[item.value : item.stop].decode("utf-8", "replace")
                case 6 | 10:
                    self._scopes += 1
                    branches.append(self._graph(item, depth + 1, self._scopes))
                case 8:
                    numbers.extend(signed(number) for number in self._wire.varints(item))
        if value is None and numbers:
            value = tuple(numbers)
        if value is not None:
            yield name, value

    def _port(self, message: Field, *, is_input: bool) -> Port:
        name, dtype = "", ""
        shape: tuple[int | str, ...] = ()
        for item in self._fields(message):
            if item.number == 1:
                name = self._wire.text(item)
            elif item.number == 2:
                for kind in self._fields(item):
                    if kind.number == 1:
                        dtype, shape = self._tensor_type(kind)
                    elif kind.number in _CONTAINERS:
                        dtype = _CONTAINERS[kind.number]
        return Port(name, dtype, shape, is_input)

    def _tensor_type(self, message: Field) -> tuple[str, tuple[int | str, ...]]:
        dtype = "undefined"
        shape: list[int | str] = []
        for item in self._fields(message):
            if item.number == 1:
                dtype, _ = self._dtype(item)
            elif item.number == 2:
                shape.extend(self._dim(dim) for dim in self._fields(item) if dim.number == 1)
        return dtype, tuple(shape)

    def _dim(self, message: Field) -> int | str:
        size: int | str = ""
        for item in self._fields(message):
            if item.number == 1:
                size = signed(item.require(VARINT).value)
                if size < 0:
                    raise WireError(item.stop, f"a dimension is {size}")
            elif item.number == 2:
                size = self._wire.text(item)
        return size

    def _dtype(self, item: Field) -> tuple[str, int]:
        code = item.require(VARINT).value
        if code not in _DTYPES:
            raise WireError(item.stop, f"there is no element type {code}")
        return _DTYPES[code]

    def _tensor(self, message: Field) -> Initializer:
        name, dtype, bits = "", "", -1
        dims: list[int] = []
        raw: Field | None = None
        typed = 0
        external: dict[str, str] = {}
        is_external = False
        for item in self._fields(message):
            match item.number:
                case 1:
                    dims.extend(self._checked_dims(item, len(dims)))
                case 2:
                    dtype, bits = self._dtype(item)
                case 4 | 5 | 7 | 10 | 11:
                    typed += 1 if item.wire_type == VARINT else item.stop - item.value
                case 8:
                    name = self._wire.text(item)
                case 9:
                    raw = item.require(BYTES)
                case 13:
                    external.update([self._pair(item)])
                case 14:
                    is_external = item.require(VARINT).value == 1
        if bits < 0:
            raise WireError(message.value, f"the tensor {name!r} has no element type")
        nbytes = (prod(dims) * bits + 7) // 8
        if is_external:
            number = self._external_number
            offset, length = (
                number(message, external, "offset"),
                number(message, external, "length"),
            )
            location = external.get("location", "")
            return Initializer(name, dtype, tuple(dims), nbytes, location, max(offset, 0), length)
        if raw is None:
            # A number of eight bytes may be written in one; in less it cannot be.
            if nbytes > 8 * typed:
                why = f"the tensor {name!r} has {typed} bytes where its shape asks for {nbytes}"
                raise WireError(message.value, why)
            return Initializer(name, dtype, tuple(dims), nbytes, None, -1, -1)
        length = raw.stop - raw.value
        if length != nbytes:
            why = f"the tensor {name!r} has {length} bytes where its shape asks for {nbytes}"
            raise WireError(raw.value, why)
        return Initializer(name, dtype, tuple(dims), nbytes, None, raw.value, length)

    def _checked_dims(self, item: Field, rank: int) -> Iterator[int]:
        for number in self._wire.varints(item):
            rank += 1
            if rank > _MAX_RANK:
                raise WireError(item.stop, f"a tensor has more than {_MAX_RANK} dimensions")
            size = signed(number)
            if size < 0:
                raise WireError(item.stop, f"a dimension is {size}")
            yield size

    def _external_number(self, message: Field, external: Mapping[str, str], key: str) -> int:
        written = external.get(key, "")
        if not written:
            return -1
        if not (written.isascii() and written.isdigit() and len(written) < 20):
            raise WireError(message.value, f"external data has the {key} {written[:40]!r}")
        return int(written)

    def _sparse(self, message: Field) -> Iterator[Initializer]:
        for item in self._fields(message):
            if item.number in (1, 2):
                yield self._tensor(item)

    def _pair(self, message: Field) -> tuple[str, str]:
        pair = {1: "", 2: ""}
        for item in self._fields(message):
            if item.number in pair:
                pair[item.number] = self._wire.text(item)
        return pair[1], pair[2]

    def _opset(self, message: Field) -> tuple[str, int]:
        domain, version = "", 0
        for item in self._fields(message):
            if item.number == 1:
                domain = self._wire.text(item)
            elif item.number == 2:
                version = signed(item.require(VARINT).value)
        return ("" if domain == "ai.onnx" else domain), version

    def _function(self, message: Field) -> tuple[str, str]:
        texts = {1: "", 10: ""}
        for item in self._fields(message):
            if item.number in texts:
                texts[item.number] = self._wire.text(item)
        return texts[10], texts[1]
