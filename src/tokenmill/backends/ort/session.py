"""An ONNX Runtime session for a package's graph, or a typed error that names what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.provider import check_providers, choose_providers
from tokenmill.backends.ort.threads import usable_processors
from tokenmill.core.errors import (
    BackendError,
    CorruptFile,
    InvalidOption,
    InvalidPackage,
    TokenmillError,
)
from tokenmill.package.model_package import ModelPackage
from tokenmill.package.onnx_file import read_onnx

_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(
    package: ModelPackage, config: BackendConfig, graph: bytes | None = None
) -> onnxruntime.InferenceSession:
    """Creates the session of the package's decoder.

    Args:
        package: whose decoder to load.
        config: threads and providers.
        graph: the model to run in place of the package's file; its external weights are those
            beside the file.

    Raises:
        ProviderUnavailable: see `choose_providers`.
        InvalidOption: a thread count or provider option that cannot be used.
        InvalidPackage: a file is missing, or the runtime refuses the graph.
        CorruptFile: a file is damaged; the message names it.
    """
    file = package.decoder.file
    providers = choose_providers(
        config.providers,
        package.provider_options,
        onnxruntime.get_available_providers(),
        fallback=config.provider_fallback,
    )
    options = _options(config)
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(file.parent.absolute()))
    if graph is None and not file.is_file():
        raise InvalidPackage(f"{file} is missing", fix="Fetch or export the package again")
    try:
        session = onnxruntime.InferenceSession(
            str(file) if graph is None else graph,
            options,
            providers=[(provider.name, dict(provider.options)) for provider in providers],
            enable_fallback=False,
        )
    except Exception as error:
        raise _load_error(file, str(error)) from error
    check_providers(providers, session.get_providers(), fallback=config.provider_fallback)
    return session


def run_error(error: Exception) -> BackendError:
    """Returns the typed error for a run that ONNX Runtime gave up."""
    return BackendError("a model step failed", why=str(error).strip() or type(error).__name__)


def _options(config: BackendConfig) -> Any:
    threads = usable_processors() if config.threads is None else config.threads
    if threads < 1:
        raise InvalidOption(f"threads: {threads} is not a number of threads", fix="Use 1 or more")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    # A memory pattern is kept for every combination of shapes, and chunks have many: a tenth more
    # memory, and no time gained.
    options.enable_mem_pattern = False
    return options


def _load_error(file: Path, message: str) -> TokenmillError:
    """Finds the file at fault, since the runtime's message names a tensor at best."""
    refetch = "Fetch or export the package again"
    try:
        header = read_onnx(file)
    except TokenmillError as error:
        return error
    ends: dict[str, int] = {}
    for weight in header.initializers:
        if weight.location is not None:
            end = weight.offset + max(weight.length, weight.nbytes)
            ends[weight.location] = max(ends.get(weight.location, 0), end)
    for location, end in ends.items():
        data = file.parent / location
        if not data.is_file():
            why = f"{file.name} keeps weights in it"
            return InvalidPackage(f"{data} is missing", why=why, fix=refetch)
        size = data.stat().st_size
        if size < end:
            why = f"it has {size} bytes where {file.name} reads {end}"
            return CorruptFile(f"{data} is truncated", why=why, fix=refetch)
    return InvalidPackage(f"ONNX Runtime cannot load {file}", why=message.strip())
