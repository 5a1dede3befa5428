"""Which backend on ONNX Runtime runs a package: the one place that chooses."""

from __future__ import annotations

from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.backends.ort.static_backend import StaticBackend
from tokenmill.package.model_package import ModelPackage, StateLayout


def open_ort_backend(package: ModelPackage, config: BackendConfig) -> DecodeBackend:
    """Loads the package's decoder into the backend for its layout of state.

    A plain graph that the rewrites make write in place goes with those that always did.

    Raises:
        UnsupportedModel: see the backends.
        ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`.
    """
    rewritten = rewrite_decoder(package, config)
    if package.state.layout is StateLayout.STATIC_CACHE:
        return StaticBackend(package, config, rewritten)
    if package.state.layout is StateLayout.PLAIN and not rewritten.shares_buffers:
        return PlainBackend(package, config, rewritten)
    return OrtBackend(package, config, rewritten)
