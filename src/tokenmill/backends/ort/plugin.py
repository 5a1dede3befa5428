"""Plug-in execution providers: shared libraries that register providers with ONNX Runtime.

A registered library belongs to the whole process. Each is registered once, when the first model
asks for it, and stays: taking it back would unload code whose threads and allocators a session
that nobody has collected yet may still use, and ONNX Runtime does not count its users.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from tokenmill.core.errors import ProviderUnavailable
from tokenmill.core.provider import Provider

_LIBRARY_PATH = "library_path"
"""The key under which ONNX Runtime tells which library a provider's device came from."""

_lock = threading.Lock()
_names: dict[Path, str] = {}
"""Registered libraries, and the names they are registered under."""


class PluginDevice(NamedTuple):
    """One device of a plug-in's provider.

    Attributes:
        ep_name: the provider's name in a session.
        handle: ONNX Runtime's `OrtEpDevice`.
    """

    ep_name: str
    handle: Any


def find_device(provider: Provider) -> PluginDevice:
    """Registers the library, where it is not yet, and returns the device that is asked for.

    Raises:
        ProviderUnavailable: there is no such library, it does not load, or it has no such
            provider or device.
    """
    assert provider.library is not None, "only plug-ins have devices to find"
    with _lock:
        path = provider.library.resolve()
        devices = _devices_of(path)
        if not devices and path not in _names:
            _names[path] = _register(path)
            devices = _devices_of(path)
    return select_device(provider, devices)


def plugin_names() -> frozenset[str]:
    """Returns the names of the providers that came from registered plug-ins."""
    with _lock:
        paths = set(_names)
    return frozenset(
        device.ep_name for device in onnxruntime.get_ep_devices() if _library_of(device) in paths
    )


def select_device(provider: Provider, devices: Sequence[Any]) -> PluginDevice:
    """Returns the first of the library's devices that is of the provider and device asked for.

    Args:
        provider: its `name` and `device` choose; see `Provider`.
        devices: the `OrtEpDevice`s of the library, in its order.

    Raises:
        ProviderUnavailable: there is none; the message lists those that there are.
    """
    names = list(dict.fromkeys(device.ep_name for device in devices))
    if not names:
        raise _unavailable(
            provider,
            "the library loads, but finds no device on this machine that it could use",
            "Check that the plug-in is made for this machine's processors",
        )
    name = next((n for n in names if not provider.name or n.lower() == provider.name.lower()), None)
    if name is None:
        why = f"it has no provider {provider.name!r}, but {', '.join(names)}"
        raise _unavailable(provider, why, f"Write ep={names[0]}, or leave ep= out")
    own = [device for device in devices if device.ep_name == name]
    for number, device in enumerate(own):
        if _matches(device.device, number, provider.device):
            return PluginDevice(name, device)
    there = ", ".join(f"{number}: {_describe(device.device)}" for number, device in enumerate(own))
    why = f"{name} has no device {provider.device!r}, but {there}"
    raise _unavailable(provider, why, "Write device= with a number or a type of that list")


def _devices_of(path: Path) -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if _library_of(device) == path]


def _library_of(device: Any) -> Path | None:
    text = dict(device.ep_metadata).get(_LIBRARY_PATH)
    return Path(text).resolve() if text else None


def _register(path: Path) -> str:
    provider = Provider("", library=path)
    if not path.is_file():
        raise _unavailable(provider, "there is no such file", "Check the path behind 'plugin:'")
    # Some providers take this name as their own, so it is one that people can read.
    name = base = path.name.partition(".")[0].removeprefix("lib") or "plugin"
    number = 1
    while name in _names.values():
        number += 1
        name = f"{base}_{number}"
    try:
        onnxruntime.register_execution_provider_library(name, str(path))
    except Exception as error:  # the runtime's own kinds are not importable by name in all versions
        raise _unavailable(
            provider,
            str(error).strip(),
            f"Use a plug-in that is made for ONNX Runtime {onnxruntime.__version__}",
        ) from error
    return name


def _matches(hardware: Any, number: int, wanted: str) -> bool:
    if not wanted:
        return True
    if wanted.isdecimal():
        return number == int(wanted)
    return wanted.lower() in (hardware.type.name.lower(), hardware.vendor.lower())


def _describe(hardware: Any) -> str:
    return f"{hardware.type.name} of {hardware.vendor or 'an unknown vendor'}"


def _unavailable(provider: Provider, why: str, fix: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"the plug-in {provider.library} is not available",
        why=why,
        fix=f"{fix}, or allow ep_fallback",
    )
