"""Execution providers by the names that people use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.backends.ort.plugin import PluginDevice, find_device
from tokenmill.core.errors import InvalidOption, ProviderUnavailable
from tokenmill.core.provider import Provider

_SUFFIX = "ExecutionProvider"
CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class ChosenProvider:
    """A provider that is there.

    Attributes:
        name: ONNX Runtime's name for it.
        options: passed to it as they are.
        device: of a plug-in its `OrtEpDevice`; None for a built-in one.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    device: Any = None


def short_name(name: str) -> str:
    """Returns "cuda" for "CUDAExecutionProvider"; what users write and read."""
    return name.replace(_SUFFIX, "").lower()


def choose_providers(
    asked: Sequence[Provider],
    packaged: Sequence[tuple[str, Mapping[str, str]]],
    available: Sequence[str],
    *,
    fallback: Callable[[ProviderUnavailable], None] | None = None,
    find_plugin: Callable[[Provider], PluginDevice] = find_device,
) -> list[ChosenProvider]:
    """Returns the providers to create a session with, in order of preference.

    The CPU is always last, whether it is asked for or not.

    Args:
        asked: the caller's wish; empty takes `packaged`, and where that is empty too the CPU.
        packaged: what the package asks for: (name, options).
        available: the runtime's names of what is built in and can be had here.
        fallback: is told of a provider that is not there, which is then left out; None raises.
        find_plugin: registers a plug-in's library and finds its device.

    Raises:
        ProviderUnavailable: one that was asked for is not there, and there is no `fallback`.
        InvalidOption: the CPU before others or with options, or one provider twice.
    """
    by_short = {short_name(name): name for name in available}
    chosen: list[ChosenProvider] = []
    for wanted in asked or _before_the_cpu(packaged):
        try:
            chosen.append(_find(wanted, by_short, find_plugin))
        except ProviderUnavailable as error:
            if fallback is None:
                raise
            fallback(error)
    _check_order([provider.name for provider in chosen])
    for provider in chosen:
        if provider.name == CPU and provider.options:
            raise InvalidOption(
                f"ep: cpu has no option {next(iter(provider.options))!r}",
                why="ONNX Runtime's CPU provider has no options",
                fix="Use threads for the number of its threads",
            )
    return [*(provider for provider in chosen if provider.name != CPU), ChosenProvider(CPU)]


def check_claims(
    chosen: Sequence[ChosenProvider],
    actual: Sequence[str],
    claims: Mapping[str, Mapping[str, int]],
    *,
    fallback: Callable[[ProviderUnavailable], None] | None = None,
) -> None:
    """Notices a provider that a session was created with and that runs no part of the graph.

    ONNX Runtime itself goes on without one whose libraries or device are missing, and without a
    word where a provider takes no node.

    Args:
        chosen: what the session was created with.
        actual: the runtime's names of what the session has.
        claims: see `read_claims`.
        fallback: is told instead of raising.

    Raises:
        ProviderUnavailable: there is such a one, and no `fallback`.
    """
    used = ", ".join(name for name, operators in claims.items() if operators)
    for provider in chosen:
        if provider.name == CPU:
            continue
        if provider.name not in actual:
            error = unavailable(
                provider.name,
                f"its libraries or its device did not load; ONNX Runtime went on with {used}",
                actual,
            )
        elif not claims.get(short_name(provider.name)):
            error = ProviderUnavailable(
                f"the execution provider {short_name(provider.name)!r} runs no part of this model",
                why=f"it took none of the graph's operators; {used} would run all of it",
                fix="Leave it out, use a model made for it, or allow ep_fallback",
            )
        else:
            continue
        if fallback is None:
            raise error
        fallback(error)


def unavailable(name: str, why: str, usable: Collection[str]) -> ProviderUnavailable:
    """Returns the error for a built-in provider that cannot be had."""
    names = ", ".join(sorted(short_name(other) for other in usable))
    return ProviderUnavailable(
        f"the execution provider {short_name(name)!r} is not available",
        why=why,
        fix=f"Use one of {names}, a plug-in (plugin:PATH), an onnxruntime that has it, "
        "or allow ep_fallback",
    )


def _find(
    provider: Provider,
    by_short: Mapping[str, str],
    find_plugin: Callable[[Provider], PluginDevice],
) -> ChosenProvider:
    if provider.library is not None:
        name, device = find_plugin(provider)
        return ChosenProvider(name, provider.options, device)
    full = by_short.get(short_name(provider.name))
    if full is None:
        why = f"this ONNX Runtime has {', '.join(sorted(by_short))}"
        raise unavailable(provider.name, why, by_short.values())
    return ChosenProvider(full, provider.options)


def _before_the_cpu(packaged: Sequence[tuple[str, Mapping[str, str]]]) -> list[Provider]:
    """Returns what a package asks for; nothing is left for what stands behind the CPU."""
    names = [short_name(name) for name, _ in packaged]
    end = names.index(short_name(CPU)) if short_name(CPU) in names else len(names)
    return [Provider(name, options) for name, options in packaged[:end]]


def _check_order(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(
                f"ep: {short_name(name)!r} is there {names.count(name)} times",
                why="a session has each execution provider once",
                fix="Name it once, with all its options",
            )
    if CPU in names[:-1]:
        after = short_name(names[names.index(CPU) + 1])
        raise InvalidOption(
            f"ep: {after!r} stands behind 'cpu'",
            why="the CPU takes every operator, so nothing is left for those behind it",
            fix="Put cpu last, or leave it out: it is always there",
        )
