from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from support.tiny_static import StaticSpec, make_static_package
from tokenmill.backends.graph.free_capacity import free_capacity
from tokenmill.core.errors import CorruptFile, InvalidPackage

PORTS = [
    f"{kind}{what}_cache.{n}"
    for n in (0, 1)
    for what in ("key", "value")
    for kind in ("", "updated_")
]


def sizes(graph: bytes) -> dict[str, list[int | str]]:
    model = onnx.ModelProto.FromString(graph)
    return {
        port.name: [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]
        for port in (*model.graph.input, *model.graph.output)
    }


@pytest.mark.parametrize(("folded", "axis"), [(True, 1), (False, 2)])
def test_the_capacity_alone_becomes_a_symbol(tmp_path: Path, folded: bool, axis: int) -> None:
    file = make_static_package(tmp_path, StaticSpec(capacity=600, folded=folded)).decoder.file
    before = sizes(file.read_bytes())
    after = sizes(free_capacity(file, None, PORTS, axis))
    for name, shape in before.items():
        if name in PORTS:
            assert shape[axis] == 600
            shape[axis] = "tokenmill.capacity"
        assert after[name] == shape


def test_a_result_is_kept(tmp_path: Path) -> None:
    file = make_static_package(tmp_path, StaticSpec(capacity=600)).decoder.file
    made = free_capacity(file, None, PORTS, 1, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.read_bytes() == made == free_capacity(file, None, PORTS, 1, tmp_path / "cache")
    assert free_capacity(file, None, PORTS[:2], 1, tmp_path / "cache") != made


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPackage, match="absent"):
        free_capacity(tmp_path / "absent.onnx", None, PORTS, 1)
    with pytest.raises(CorruptFile, match="bad"):
        free_capacity(tmp_path / "bad.onnx", b"garbage", PORTS, 1)
