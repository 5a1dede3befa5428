"""Tiny packages and the backends that run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.layouts import KINDS, Spec
from support.plain_package import make_plain_package
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from support.tiny_static import StaticSpec, make_static_package
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.backends.select import open_backend
from tokenmill.package.model_package import ModelPackage

MakePackage = Callable[[Spec], ModelPackage]
OpenBackend = Callable[..., DecodeBackend]


@pytest.fixture(scope="session")
def package_for(tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    made: dict[Spec, ModelPackage] = {}

    def make(spec: Spec) -> ModelPackage:
        if spec not in made:
            directory = tmp_path_factory.mktemp("package")
            if isinstance(spec, StaticSpec):
                made[spec] = make_static_package(directory, spec)
            elif isinstance(spec, TinySpec):
                made[spec] = make_package(directory, spec)
            else:
                made[spec] = make_plain_package(directory, spec)
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
        spec: Spec | None = None,
        *,
        max_rows: int = 4,
        max_context: int | None = None,
        threads: int = 1,
        seed: int = 0,
    ) -> DecodeBackend:
        config = BackendConfig(
            threads=threads, max_rows=max_rows, max_context=max_context, cache_dir=graph_cache
        )
        name, usual = KINDS[name]
        package = package_for(replace(spec or usual, seed=seed) if seed else spec or usual)
        backend: DecodeBackend
        if name == "plain":
            backend = PlainBackend(package, config)
        else:
            backend = open_backend(package, config, name)
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.check_integrity()
        backend.shutdown()
        backend.check_integrity()
