from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from support.tiny_onnx import TinySpec, save_decoder
from tokenmill.backends.base import Numerics
from tokenmill.backends.ort.numerics import declared_numerics, provider_identity

_MEASURED = Numerics(
    batch_invariant=True, chunk_invariant_from=2, decode_equals_prefill=False, thread_invariant=True
)
_NO_PROMISE = Numerics(
    batch_invariant=False,
    chunk_invariant_from=None,
    decode_equals_prefill=False,
    thread_invariant=False,
)


def _session(claims: dict[str, int], options: Any = None, device: int = 0) -> Any:
    def part(name: str, number: int) -> Any:
        nodes = [SimpleNamespace(op_type="Add")] * number
        return SimpleNamespace(ep_name=name, get_nodes=lambda: nodes)

    hardware = SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor_id=1, device_id=device)
    return SimpleNamespace(
        get_providers=lambda: [*claims],
        get_provider_graph_assignment_info=lambda: [part(*item) for item in claims.items()],
        get_provider_options=lambda: options or {},
        get_input_epdevices=lambda: [SimpleNamespace(ep_name="X", device=hardware), None],
    )


_CPU = "CPUExecutionProvider"


def test_what_was_measured_on_the_cpu_is_declared_for_it_alone(tmp_path: Path) -> None:
    file = save_decoder(TinySpec(), tmp_path)
    assert declared_numerics(_session({_CPU: 3}), _MEASURED, file) == _MEASURED
    assert declared_numerics(_session({"X": 0, _CPU: 3}), _MEASURED, file) == _MEASURED
    assert declared_numerics(_session({"X": 1, _CPU: 3}), _MEASURED, file) == _NO_PROMISE


@pytest.mark.parametrize(("level", "exact"), [(4, True), (1, False), (0, False)])
def test_quantised_products_keep_their_bits_in_a_batch_at_one_level_only(
    tmp_path: Path, level: int, exact: bool
) -> None:
    file = save_decoder(TinySpec(bits=4), tmp_path)
    model = onnx.load(file)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            kept = [a for a in node.attribute if a.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("accuracy_level", level)])
    onnx.save(model, file)
    found = declared_numerics(_session({_CPU: 3}), _MEASURED, file)
    assert found.batch_invariant is exact
    assert found.chunk_invariant_from == (2 if exact else None)


def test_options_and_devices_are_part_of_the_identity() -> None:
    plain = provider_identity(_session({"X": 1}))
    assert plain == (("X",), ("X", "NPU", 1, 0))
    exact = provider_identity(_session({"X": 1}, {"X": {"b": "2", "a": "1"}}))
    assert exact == (("X", ("a", "1"), ("b", "2")), ("X", "NPU", 1, 0))
    assert provider_identity(_session({"X": 1}, device=1)) != plain
