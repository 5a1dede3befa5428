"""Which of a session's ports lie in the host's own memory.

I/O binding hands the host's arrays to a session without a copy where the port's first reader runs
in the host's memory. Where a provider reads it in memory of its own, even if that is "shared", the
runtime copies the array once, when it is bound: what is written into the array later is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenmill.core.errors import ProviderUnavailable

_HOST = "Cpu"
"""What ONNX Runtime calls the host's memory."""


def copied_inputs(session: Any) -> frozenset[str]:
    """Returns the inputs that are copied when they are bound, and have to be bound anew."""
    return _elsewhere(session.get_inputs(), session.get_input_memory_infos())


def check_state_is_shared(session: Any, state: Iterable[str]) -> None:
    """Refuses a session that does not read and write its state in the host's buffers.

    Args:
        session: an `InferenceSession`.
        state: names of its past inputs and present outputs, which are one buffer each.

    Raises:
        ProviderUnavailable: a provider keeps a port of the state in memory of its own.
    """
    elsewhere = copied_inputs(session) | _elsewhere(
        session.get_outputs(), session.get_output_memory_infos()
    )
    wrong = sorted(elsewhere & set(state))
    if wrong:
        names = ", ".join(session.get_providers())
        raise ProviderUnavailable(
            f"the model's state cannot be kept on the execution providers {names}",
            why=f"{wrong[0]!r} and {len(wrong) - 1} more ports are in a provider's own memory; "
            "keys and values are kept in the host's and written in place",
            fix="Use a provider that leaves attention to the CPU, or cpu",
        )


def _elsewhere(ports: Sequence[Any], memories: Sequence[Any]) -> frozenset[str]:
    return frozenset(
        port.name
        for port, memory in zip(ports, memories, strict=True)
        if memory is not None and memory.name != _HOST
    )
