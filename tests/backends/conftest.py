"""Tiny packages and the two backends that run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.package.model_package import ModelPackage

MakePackage = Callable[[TinySpec], ModelPackage]
OpenBackend = Callable[..., DecodeBackend]


@pytest.fixture(scope="session")
def package_for(tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    made: dict[TinySpec, ModelPackage] = {}

    def make(spec: TinySpec) -> ModelPackage:
        if spec not in made:
            made[spec] = make_package(tmp_path_factory.mktemp("package"), spec)
        return made[spec]

    return make


@pytest.fixture(scope="session")
def graph_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def open_tiny(package_for: MakePackage, graph_cache: Path) -> Iterator[OpenBackend]:
    """Opens backends on tiny decoders; checks their accounts and closes them afterwards."""
    opened: list[DecodeBackend] = []

    def make(
        name: str = "ort",
        spec: TinySpec | None = None,
        *,
        max_rows: int = 4,
        max_context: int | None = None,
        threads: int = 1,
    ) -> DecodeBackend:
        config = BackendConfig(
            threads=threads, max_rows=max_rows, max_context=max_context, cache_dir=graph_cache
        )
        backend = open_backend(package_for(spec or TinySpec()), config, name)
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.check_integrity()
        backend.shutdown()
