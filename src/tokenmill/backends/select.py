"""Backends by name."""

from __future__ import annotations

from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.core.errors import InvalidOption
from tokenmill.package.model_package import ModelPackage

BACKEND_NAMES = ("auto", "ort", "reference")
"""What `open_backend` knows; "auto" is the fastest one that runs the package."""


def open_backend(package: ModelPackage, config: BackendConfig, name: str = "auto") -> DecodeBackend:
    """Loads the package's decoder into a backend.

    Args:
        package: what to run.
        config: threads, providers and limits.
        name: one of `BACKEND_NAMES`.

    Raises:
        InvalidOption: there is no backend of that name.
        ProviderUnavailable: see `ort.provider.choose_providers`.
        UnsupportedModel: the backend cannot run this package.
        InvalidPackage: a file is missing or damaged.
    """
    if name in ("auto", "ort"):
        from tokenmill.backends.ort.open_backend import open_ort_backend

        return open_ort_backend(package, config)
    if name == "reference":
        from tokenmill.backends.reference.backend import ReferenceBackend

        return ReferenceBackend(package, config)
    raise InvalidOption(
        f"backend: there is none called {name!r}", fix=f"Use one of {', '.join(BACKEND_NAMES)}"
    )
