"""Small changes to good packages: one field of a document, one name or weight of a graph."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import yaml
from onnx import NodeProto, TensorProto, ValueInfoProto, external_data_helper, helper

from tokenmill.package.load_options import LoadOptions

FIXTURES = Path(__file__).parent.parent / "fixtures"

Break = Callable[[Path], None]
"""Changes a package in place; given its directory."""

_GONE = object()
"""A field that is taken out."""


def copy_of(fixture: str, directory: Path) -> Path:
    """Copies a committed package, e.g. "llama/optimum", and returns the copy."""
    return Path(shutil.copytree(FIXTURES / fixture, directory))


def several(*breaks: Break) -> Break:
    """One change that takes several steps."""

    def run(root: Path) -> None:
        for one in breaks:
            one(root)

    return run


# Files


def remove(name: str) -> Break:
    return lambda root: (root / name).unlink()


def write(name: str, content: str | bytes) -> Break:
    data = content.encode() if isinstance(content, str) else content
    return lambda root: _ignore((root / name).write_bytes(data))


def cut(name: str, keep: float) -> Break:
    """Keeps the first part of a file."""

    def run(root: Path) -> None:
        data = (root / name).read_bytes()
        (root / name).write_bytes(data[: int(len(data) * keep)])

    return run


def replace(name: str, old: str, new: str) -> Break:
    def run(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text, f"{name} does not hold {old!r}"
        (root / name).write_text(text.replace(old, new, 1))

    return run


def append(name: str, text: str) -> Break:
    def run(root: Path) -> None:
        with (root / name).open("a") as file:
            file.write(text)

    return run


def copy(source: str, target: str) -> Break:
    return lambda root: _ignore(shutil.copy(root / source, root / target))


def move_out(name: str) -> Break:
    """Moves a file out of the package and leaves a link to it."""

    def run(root: Path) -> None:
        outside = root.parent / "outside"
        outside.mkdir()
        (root / name).rename(outside / Path(name).name)
        (root / name).symlink_to(outside / Path(name).name)

    return run


def link_to_itself(name: str) -> Break:
    def run(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(Path(name).name)

    return run


# Documents


def field(name: str, path: str, value: Any) -> Break:
    """Sets a field of a JSON or YAML file; the path is "a.b.0.c"."""
    return _edit(name, path, value)


def without(name: str, path: str) -> Break:
    """Takes a field out of a JSON or YAML file."""
    return _edit(name, path, _GONE)


def _edit(name: str, path: str, value: Any) -> Break:
    def run(root: Path) -> None:
        file = root / name
        is_json = file.suffix == ".json"
        text = file.read_text()
        document = json.loads(text) if is_json else yaml.safe_load(text)
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
        inner = document
        for key in parents:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner[key]
        if value is _GONE:
            del inner[last]
        else:
            inner[last] = value
        dumped = json.dumps(document) if is_json else yaml.safe_dump(document, sort_keys=False)
        file.write_text(dumped)

    return run


# Graphs


def graph(change: Callable[[onnx.ModelProto], None], name: str = "model.onnx") -> Break:
    """Changes a graph; weights beside it stay where they are."""

    def run(root: Path) -> None:
        model = onnx.load(root / name, load_external_data=False)
        change(model)
        (root / name).write_bytes(model.SerializeToString())

    return run


def rename(old: str, new: str, name: str = "model.onnx") -> Break:
    """Renames a port, with all that reads or makes it."""

    def change(model: onnx.ModelProto) -> None:
        ports = [*model.graph.input, *model.graph.output]
        assert any(port.name == old for port in ports), f"{name} has no port {old!r}"
        for port in ports:
            port.name = new if port.name == old else port.name
        for node in model.graph.node:
            node.input[:] = [new if one == old else one for one in node.input]
            node.output[:] = [new if one == old else one for one in node.output]

    return graph(change, name)


def port(model: onnx.ModelProto, name: str) -> ValueInfoProto:
    return next(one for one in (*model.graph.input, *model.graph.output) if one.name == name)


def resize(port_name: str, axis: int, size: int) -> Break:
    """Writes another size into a port's shape."""

    def change(model: onnx.ModelProto) -> None:
        port(model, port_name).type.tensor_type.shape.dim[axis].dim_value = size

    return graph(change)


def retype(port_name: str, dtype: int) -> Break:
    def change(model: onnx.ModelProto) -> None:
        port(model, port_name).type.tensor_type.elem_type = dtype

    return graph(change)


def drop_ports(*words: str) -> Break:
    """Takes the ports with one of these words in their names out of the graph's lists."""

    def change(model: onnx.ModelProto) -> None:
        for ports in (model.graph.input, model.graph.output):
            kept = [one for one in ports if not any(word in one.name for word in words)]
            del ports[:]
            ports.extend(kept)

    return graph(change)


def add_node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Break:
    """Puts a node behind the others."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node(operator, inputs, outputs, **attributes))

    return graph(change)


def node(operator: str, change: Callable[[NodeProto], None]) -> Break:
    """Changes the first node of an operator."""

    def run(model: onnx.ModelProto) -> None:
        change(next(one for one in model.graph.node if one.op_type == operator))

    return graph(run)


def weight(change: Callable[[TensorProto], None]) -> Break:
    """Changes the weight with the most numbers."""

    def run(model: onnx.ModelProto) -> None:
        def numbers(tensor: TensorProto) -> int:
            product = 1
            for size in tensor.dims:
                product *= size
            return product

        change(max(model.graph.initializer, key=numbers))

    return graph(run)


def external(key: str, value: str) -> Break:
    """Writes what a weight says of its place beside the graph: location, offset or length."""

    def change(tensor: TensorProto) -> None:
        assert external_data_helper.uses_external_data(tensor)
        entry = next(one for one in tensor.external_data if one.key == key)
        entry.value = value

    return weight(change)


def _ignore(_: object) -> None:
    """Takes what a call returns, for lambdas that return nothing."""


class Broken(NamedTuple):
    """A package with one fault.

    Attributes:
        name: the fault, in words.
        base: the good package: a fixture's path, or a function that writes one.
        fault: what is done to a copy of it.
        says: what its message must hold: the file, and the field, port, node or weight.
        opened: the fault lies beyond what is read before the weights: the model is opened.
        options: how the package is read.
    """

    name: str
    base: str | Callable[[Path], Path]
    fault: Break
    says: str
    opened: bool = False
    options: LoadOptions = LoadOptions()
