from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny_package import make_package
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.reference.backend import ReferenceBackend
from tokenmill.backends.select import open_backend
from tokenmill.core.errors import InvalidOption


def test_backends_by_name(tmp_path: Path) -> None:
    package, config = make_package(tmp_path), BackendConfig(threads=1)
    assert isinstance(open_backend(package, config), OrtBackend)
    assert isinstance(open_backend(package, config, "ort"), OrtBackend)
    assert isinstance(open_backend(package, config, "reference"), ReferenceBackend)


def test_an_unknown_name_lists_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"'vulkan'.*auto, ort, reference"):
        open_backend(make_package(tmp_path), BackendConfig(), "vulkan")
