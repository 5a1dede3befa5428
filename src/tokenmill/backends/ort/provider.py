"""Execution providers by the names that people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenmill.backends.config import Provider
from tokenmill.core.errors import ProviderUnavailable

_SUFFIX = "ExecutionProvider"
CPU = "CPUExecutionProvider"


def short_name(name: str) -> str:
    """Returns "cuda" for "CUDAExecutionProvider"; what users write and read."""
    return name.removesuffix(_SUFFIX).lower()


def choose_providers(
    asked: Sequence[Provider],
    packaged: Sequence[tuple[str, Mapping[str, str]]],
    available: Sequence[str],
    *,
    fallback: bool,
) -> list[Provider]:
    """Returns the providers to create a session with, in order, under their full names.

    Args:
        asked: the caller's wish; empty takes `packaged`, and where that is empty too the CPU.
        packaged: what the package asks for: (name, options).
        available: the runtime's names of what this machine has.
        fallback: leave out what is not there; at the end there is always the CPU.

    Raises:
        ProviderUnavailable: one that was asked for is not there, and `fallback` is off.
    """
    by_short = {short_name(name): name for name in available}
    wanted = list(asked) or [Provider(name, options) for name, options in packaged]
    chosen: list[Provider] = []
    for provider in wanted:
        full = by_short.get(short_name(provider.name))
        if full is not None:
            chosen.append(Provider(full, provider.options))
        elif not fallback:
            raise unavailable(
                provider.name, f"this ONNX Runtime has {', '.join(sorted(by_short))}", available
            )
    return chosen or [Provider(CPU)]


def check_providers(chosen: Sequence[Provider], actual: Sequence[str], *, fallback: bool) -> None:
    """Raises where a session goes without a provider that it was created with.

    ONNX Runtime itself goes on without one whose libraries or device are missing.
    """
    for provider in chosen:
        if provider.name not in actual and not fallback:
            used = ", ".join(short_name(name) for name in actual)
            raise unavailable(
                provider.name,
                f"its libraries or its device did not load; ONNX Runtime went on with {used}",
                actual,
            )


def unavailable(name: str, why: str, usable: Sequence[str]) -> ProviderUnavailable:
    """Returns the error for a provider that cannot be had."""
    names = ", ".join(sorted(short_name(other) for other in usable))
    return ProviderUnavailable(
        f"the execution provider {short_name(name)!r} is not available",
        why=why,
        fix=f"Use one of {names}, install an onnxruntime that has it, or allow provider_fallback",
    )
