"""The determinism matrix on a tiny model of each layout; on a real one in tests/e2e."""

import random

import pytest

from support.layouts import KINDS
from support.matrix import ASKINGS, SETTINGS, check
from support.plain_package import make_plain_package
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from support.tiny_static import StaticSpec, make_static_package
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.backends.select import open_backend
from tokenmill.engine.model import LoadedModel

TOLERANCE = {"plain": 1e-5}
"""Padding moves the results of graphs that run padded; all others keep their bits."""


CHOOSE = random.Random(7)
PROMPTS = [[CHOOSE.randrange(90) for _ in range(n)] for n in (3, 40, 17, 2, 33, 8, 50, 21)]


def package_of(kind, directory):
    spec = KINDS[kind][1]
    if isinstance(spec, StaticSpec):
        return make_static_package(directory, spec)
    if isinstance(spec, TinySpec):
        return make_package(directory, spec)
    return make_plain_package(directory, spec)


@pytest.mark.parametrize("kind", ["ort", "plain", "plain, rewritten", "static"])
def test_what_comes_out_does_not_depend_on_how_it_is_run(kind, tmp_path):
    package = package_of(kind, tmp_path)

    def load(setting):
        config = BackendConfig(
            threads=1, max_rows=setting.max_rows(PROMPTS), max_context=200,
            cache_dir=tmp_path / "graphs",
        )  # fmt: skip
        if kind == "plain":
            backend = PlainBackend(package, config)
        else:
            backend = open_backend(package, config, KINDS[kind][0])
        return LoadedModel(package, None, backend, setting.config)

    tolerance = TOLERANCE.get(kind, 0.0)
    check(load, SETTINGS, ASKINGS, PROMPTS, tokens=24, tolerance=tolerance)
