"""An ONNX Runtime session for a package's graph, or a typed error that names what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.claims import RECORD_CLAIMS, read_claims
from tokenmill.backends.ort.plugin import plugin_names
from tokenmill.backends.ort.provider import (
    CPU,
    ChosenProvider,
    check_claims,
    choose_providers,
    short_name,
)
from tokenmill.backends.ort.threads import usable_processors
from tokenmill.core.errors import (
    BackendError,
    CorruptFile,
    InvalidOption,
    InvalidPackage,
    ProviderUnavailable,
    TokenmillError,
)
from tokenmill.package.model_package import ModelPackage
from tokenmill.package.onnx_file import read_onnx

_log = logging.getLogger(__name__)

_ERRORS_ONLY = 3
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(
    package: ModelPackage, config: BackendConfig, graph: bytes | None = None
) -> onnxruntime.InferenceSession:
    """Creates the session of the package's decoder.

    A provider that runs no part of the graph is an error, or with `config.provider_fallback` a
    warning in the log. `read_claims` of the session tells who runs what.

    Args:
        package: whose decoder to load.
        config: threads and providers.
        graph: the model to run in place of the package's file; its external weights are those
            beside the file.

    Raises:
        ProviderUnavailable: see `choose_providers` and `check_claims`; or a provider that cannot
            run this graph, which the CPU can.
        InvalidOption: a thread count or provider option that cannot be used.
        InvalidPackage: a file is missing, or the runtime refuses the graph.
        CorruptFile: a file is damaged; the message names it.
    """
    file = package.decoder.file
    built_in = set(onnxruntime.get_available_providers()) - plugin_names()
    fallback = _warn if config.provider_fallback else None
    providers = choose_providers(
        config.providers, package.provider_options, sorted(built_in), fallback=fallback
    )
    if graph is None and not file.is_file():
        raise InvalidPackage(f"{file} is missing", fix="Fetch or export the package again")
    model = str(file) if graph is None else graph
    _warn_of_threads(config.threads)

    def create(chosen: Sequence[ChosenProvider]) -> onnxruntime.InferenceSession:
        return _create(model, _options(config, file.parent), chosen)

    try:
        session = create(providers)
    except TokenmillError:
        raise
    except Exception as error:
        return _without_providers(file, providers, error, create, fallback)
    check_claims(providers, session.get_providers(), read_claims(session), fallback=fallback)
    return session


def run_error(error: Exception) -> BackendError:
    """Returns the typed error for a run that ONNX Runtime gave up."""
    return BackendError("a model step failed", why=str(error).strip() or type(error).__name__)


def _create(
    model: str | bytes, options: Any, chosen: Sequence[ChosenProvider]
) -> onnxruntime.InferenceSession:
    if all(provider.device is None for provider in chosen):
        return onnxruntime.InferenceSession(
            model,
            options,
            providers=[(provider.name, dict(provider.options)) for provider in chosen],
            enable_fallback=False,
        )
    for provider in chosen:
        if provider.device is None:
            options.add_provider(provider.name, dict(provider.options))
        else:
            options.add_provider_for_devices([provider.device], dict(provider.options))
    return onnxruntime.InferenceSession(model, options, enable_fallback=False)


def _without_providers(
    file: Path,
    providers: Sequence[ChosenProvider],
    error: Exception,
    create: Callable[[Sequence[ChosenProvider]], onnxruntime.InferenceSession],
    fallback: Callable[[ProviderUnavailable], None] | None,
) -> onnxruntime.InferenceSession:
    """Finds who is at fault, the files, the graph or the providers; the CPU's session where told.

    The runtime's message does not tell: a graph that loads on the CPU alone is sound.
    """
    fault = _load_error(file, str(error))
    names = [short_name(provider.name) for provider in providers if provider.name != CPU]
    if not names or type(fault) is not InvalidPackage:
        raise fault from error
    try:
        session = create([ChosenProvider(CPU)])
    except Exception:
        raise fault from error
    refused = ProviderUnavailable(
        f"the model does not load on the execution provider {', '.join(names)}",
        why=str(error).strip(),
        fix="Check its options, leave it out, or allow ep_fallback",
    )
    if fallback is None:
        raise refused from error
    fallback(refused)
    return session


def _warn(error: ProviderUnavailable) -> None:
    _log.warning("going on without: %s: %s", error.what, error.why)


def _warn_of_threads(threads: int | None) -> None:
    processors = usable_processors()
    if threads is not None and threads > processors:
        _log.warning(
            "threads is %d, and this process may use %d processors: "
            "threads that wait for one another make each step slower",
            threads,
            processors,
        )


def _options(config: BackendConfig, weights: Path) -> Any:
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
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights.absolute()))
    options.add_session_config_entry(RECORD_CLAIMS, "1")
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
