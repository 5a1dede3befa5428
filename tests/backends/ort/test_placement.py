from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenmill.backends.ort.placement import check_state_is_shared, copied_inputs
from tokenmill.core.errors import ProviderUnavailable


def _session(inputs: dict[str, str | None], outputs: dict[str, str | None]) -> Any:
    def ports(memories: dict[str, str | None]) -> Any:
        return [SimpleNamespace(name=name) for name in memories]

    def places(memories: dict[str, str | None]) -> Any:
        return [memory and SimpleNamespace(name=memory) for memory in memories.values()]

    return SimpleNamespace(
        get_inputs=lambda: ports(inputs),
        get_outputs=lambda: ports(outputs),
        get_input_memory_infos=lambda: places(inputs),
        get_output_memory_infos=lambda: places(outputs),
        get_providers=lambda: ["X", "CPUExecutionProvider"],
    )


def test_inputs_in_other_memory_are_copied() -> None:
    # An input that nothing reads has no place.
    session = _session({"ids": "X_shared", "past": "Cpu", "unused": None}, {})
    assert copied_inputs(session) == {"ids"}


def test_state_in_the_hosts_memory_is_shared() -> None:
    session = _session({"ids": "X_shared", "past": "Cpu"}, {"logits": "X", "present": "Cpu"})
    check_state_is_shared(session, ["past", "present"])


@pytest.mark.parametrize(("past", "present"), [("X", "Cpu"), ("Cpu", "X"), ("X", "X")])
def test_state_in_other_memory_is_refused(past: str, present: str) -> None:
    session = _session({"past": past}, {"present": present})
    with pytest.raises(ProviderUnavailable, match="execution providers X, CPUExecutionProvider"):
        check_state_is_shared(session, ["past", "present"])
