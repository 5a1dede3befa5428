"""What may be declared of a session's results, by who computes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.backends.base import Numerics
from tokenmill.backends.ort.claims import read_claims
from tokenmill.package.onnx_file import read_onnx

_NOTHING_MEASURED = Numerics(
    batch_invariant=False,
    chunk_invariant_from=None,
    decode_equals_prefill=False,
    thread_invariant=False,
)


_QUANTISED = "com.microsoft.MatMulNBits"
_INTEGER_PRODUCTS = 4
"""The `accuracy_level` at which the CPU multiplies in int8; below it a row's bits depend on how
many rows there are."""


def declared_numerics(session: Any, on_the_cpu: Numerics, file: Path) -> Numerics:
    """Returns what was measured on the CPU provider where it runs every node, else no promise.

    Args:
        session: of the graph.
        on_the_cpu: what was measured of the layout.
        file: the graph as it is in the package.
    """
    others = [operators for name, operators in read_claims(session).items() if name != "cpu"]
    if any(others):
        return _NOTHING_MEASURED
    levels = {
        node.attributes.get("accuracy_level", 0)
        for node in read_onnx(file).nodes
        if node.operator == _QUANTISED
    }
    if levels - {_INTEGER_PRODUCTS}:
        return replace(on_the_cpu, batch_invariant=False, chunk_invariant_from=None)
    return on_the_cpu


def provider_identity(session: Any) -> tuple[object, ...]:
    """Returns what tells sessions apart whose results may differ: providers, options, devices.

    Part of the fingerprint of the state that a session makes.
    """
    options = session.get_provider_options()
    devices = {
        (device.ep_name, device.device.type.name, device.device.vendor_id, device.device.device_id)
        for device in session.get_input_epdevices()
        if device is not None
    }
    return (
        *((name, *sorted(options.get(name, {}).items())) for name in session.get_providers()),
        *sorted(devices),
    )
