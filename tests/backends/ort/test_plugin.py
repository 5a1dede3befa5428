"""Plug-in providers: against an imitation of the runtime's registry, and real ones if installed."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from tokenmill.backends.config import BackendConfig, Provider
from tokenmill.backends.ort import plugin
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.claims import read_claims
from tokenmill.backends.ort.plugin import find_device, plugin_names, select_device
from tokenmill.backends.ort.session import open_session
from tokenmill.core.errors import InvalidPackage, ProviderUnavailable
from tokenmill.core.provider import parse_provider
from tokenmill.core.rows import Row

_ONE = BackendConfig(threads=1, max_rows=2, max_context=64)


def _device(name: str, kind: str, vendor: str = "Acme", library: Path | None = None) -> Any:
    hardware = SimpleNamespace(type=SimpleNamespace(name=kind), vendor=vendor)
    metadata = {} if library is None else {"library_path": str(library)}
    return SimpleNamespace(ep_name=name, device=hardware, ep_metadata=metadata)


class _Registry:
    """The part of ONNX Runtime that plug-ins register with; every library has one CPU device."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, str]] = []
        self.was_alone = True
        self.devices: list[Any] = [_device("CPUExecutionProvider", "CPU")]

    def register(self, name: str, path: str) -> None:
        if "broken" in path:
            raise RuntimeError("undefined symbol: CreateEpFactories")
        self.was_alone &= plugin._lock.locked()
        self.registered.append((name, path))
        if "idle" not in path:
            self.devices.append(_device(f"Ep_{name}", "CPU", library=Path(path)))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> _Registry:
    made = _Registry()
    monkeypatch.setattr(plugin, "_names", {})
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", made.register)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: made.devices)
    return made


def _library(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_bytes(b"")
    return file


def test_a_library_is_registered_once_under_a_readable_name(
    registry: _Registry, tmp_path: Path
) -> None:
    library = _library(tmp_path, "libnpu_ep.so.1")
    link = tmp_path / "link.so"
    link.symlink_to(library)
    first = find_device(Provider("", library=library))
    second = find_device(Provider("", library=link))
    assert first == second
    assert first.ep_name == "Ep_npu_ep"
    assert registry.registered == [("npu_ep", str(library))]
    assert plugin_names() == {"Ep_npu_ep"}


def test_models_that_load_at_once_register_it_once(registry: _Registry, tmp_path: Path) -> None:
    library = _library(tmp_path, "npu.so")
    barrier = threading.Barrier(4)

    def load() -> None:
        barrier.wait()
        find_device(Provider("", library=library))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.registered) == 1
    assert registry.was_alone


def test_libraries_of_one_name_do_not_meet(registry: _Registry, tmp_path: Path) -> None:
    paths = [_library(tmp_path / folder, "libnpu.so") for folder in ("a", "b")]
    names = [find_device(Provider("", library=path)).ep_name for path in paths]
    assert names == ["Ep_npu", "Ep_npu_2"]


def test_a_library_that_the_process_registered_itself_is_used(
    registry: _Registry, tmp_path: Path
) -> None:
    library = _library(tmp_path, "npu.so")
    registry.devices.append(_device("Theirs", "CPU", library=library))
    assert find_device(Provider("", library=library)).ep_name == "Theirs"
    assert registry.registered == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing.so", "there is no such file"),
        ("broken.so", "undefined symbol: CreateEpFactories"),
        ("idle.so", "the library loads, but finds no device on this machine"),
    ],
)
def test_a_library_that_cannot_be_used(
    registry: _Registry, tmp_path: Path, name: str, why: str
) -> None:
    if name != "missing.so":
        _library(tmp_path, name)
    for _ in range(2):  # the second time it says the same
        with pytest.raises(ProviderUnavailable) as caught:
            find_device(Provider("", library=tmp_path / name))
        assert why in caught.value.why
        assert str(tmp_path / name) in caught.value.what
        assert "ep_fallback" in caught.value.fix
    assert len(registry.registered) == (name == "idle.so")


_DEVICES = [
    _device("XExecutionProvider", "GPU"),
    _device("XExecutionProvider", "CPU", "Other"),
    _device("XExecutionProvider", "GPU", "Other"),
    _device("X.Auto", "CPU"),
]


@pytest.mark.parametrize(
    ("name", "device", "index"),
    [
        ("", "", 0),
        ("", "gpu", 0),
        ("", "CPU", 1),
        ("", "other", 1),
        ("", "2", 2),
        ("x.auto", "", 3),
        ("X.Auto", "0", 3),
    ],
)
def test_a_device_is_chosen_by_type_vendor_or_number(name: str, device: str, index: int) -> None:
    chosen = select_device(Provider(name, library=Path("/x.so"), device=device), _DEVICES)
    assert chosen.handle is _DEVICES[index]


@pytest.mark.parametrize(
    ("name", "device", "why"),
    [
        (
            "",
            "NPU",
            "no device 'NPU', but 0: GPU of Acme, 1: CPU of Other, 2: GPU of Other",
        ),
        ("", "3", "has no device '3'"),
        ("X.Auto", "GPU", "X.Auto has no device 'GPU', but 0: CPU of Acme"),
        ("Y", "", "it has no provider 'Y', but XExecutionProvider, X.Auto"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_is(
    name: str, device: str, why: str
) -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        select_device(Provider(name, library=Path("/x.so"), device=device), _DEVICES)
    assert why in caught.value.why


def test_a_plug_ins_provider_cannot_be_asked_for_by_name(
    registry: _Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ONNX Runtime lists it with the built-in ones, and then makes sessions without it.
    library = _library(tmp_path, "npu.so")
    find_device(Provider("", library=library))
    names = ["Ep_npu", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    package = make_package(tmp_path, TinySpec())
    with pytest.raises(ProviderUnavailable, match="this ONNX Runtime has cpu"):
        open_session(package, replace(_ONE, providers=(Provider("ep_npu"),)))


def test_the_runtime_itself_refuses_what_is_no_library(tmp_path: Path) -> None:
    library = _library(tmp_path, "libtext.so")
    with pytest.raises(ProviderUnavailable, match="Failed to load library"):
        find_device(Provider("", library=library))


def _fails_with(monkeypatch: pytest.MonkeyPatch, *, on_the_cpu: bool) -> None:
    real = onnxruntime.InferenceSession

    def create(model: Any, options: Any, providers: Any = (), **rest: Any) -> Any:
        if on_the_cpu or providers[0][0] != "CPUExecutionProvider":
            raise RuntimeError("it cannot be compiled")
        return real(model, options, providers=providers, **rest)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["XExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", create)


def test_a_provider_that_cannot_compile_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = make_package(tmp_path, TinySpec())
    config = replace(_ONE, providers=(Provider("x"),))
    _fails_with(monkeypatch, on_the_cpu=False)
    with pytest.raises(ProviderUnavailable, match="does not load on the execution provider x"):
        open_session(package, config)
    with caplog.at_level(logging.WARNING):
        session = open_session(package, replace(config, provider_fallback=True))
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "going on without: the model does not load on" in caplog.text


def test_a_graph_that_nothing_can_load_is_the_packages_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = make_package(tmp_path, TinySpec())
    _fails_with(monkeypatch, on_the_cpu=True)
    with pytest.raises(InvalidPackage, match="ONNX Runtime cannot load"):
        open_session(package, replace(_ONE, providers=(Provider("x"),)))


_FP32 = 'opt.load_config={"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'


@pytest.fixture
def openvino() -> Provider:
    """OpenVINO on the CPU, in full precision; it computes in bfloat16 where it can otherwise."""
    module = pytest.importorskip(
        "onnxruntime_ep_openvino", reason="get it with: pip install onnxruntime-ep-openvino"
    )
    return parse_provider(f"plugin:{module.get_library_path()}|device=CPU|{_FP32}")


def _logits(backend: OrtBackend, rounds: list[list[list[int]]]) -> list[np.ndarray]:
    """Returns the logits of each round of rows, on sequences that grow."""
    sequences = [backend.open() for _ in rounds[0]]
    out = []
    for tokens in rounds:
        rows = [Row(s, t) for s, t in zip(sequences, tokens, strict=True)]
        out += [
            np.array(row.logits[-1]) for row in backend.run(rows).rows if row.logits is not None
        ]
        for sequence, row in zip(sequences, rows, strict=True):
            backend.commit(sequence, len(row.tokens))
    return out


def test_openvino_computes_what_the_cpu_does(tmp_path: Path, openvino: Provider) -> None:
    package = make_package(tmp_path, TinySpec())
    rounds = [[[5, 6, 7], [8, 9]], [[1], [2]], [[3], [4]], [[5, 6], [7, 8]]]
    wanted = _logits(OrtBackend(package, _ONE), rounds)
    config = replace(_ONE, providers=(openvino,))
    for backend in (OrtBackend(package, config), OrtBackend(package, config)):
        for got, expected in zip(_logits(backend, rounds), wanted, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-4)


def test_openvino_leaves_attention_to_the_cpu(tmp_path: Path, openvino: Provider) -> None:
    package = make_package(tmp_path, TinySpec())
    claims = read_claims(open_session(package, replace(_ONE, providers=(openvino,))))
    assert [*claims] == ["openvino", "cpu"]
    assert claims["cpu"] == {"GroupQueryAttention": len(package.state.attention)}
    assert claims["openvino"]["MatMul"] > 1


def test_a_real_plug_in_that_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = pytest.importorskip("nxrt_ep_cpu", reason="get it with: pip install nxrt-ep-cpu")
    package = make_package(tmp_path, TinySpec())
    config = replace(_ONE, providers=(parse_provider(f"plugin:{module.get_library_path()}"),))
    with pytest.raises(ProviderUnavailable, match="'cpu_ep' runs no part of this model"):
        OrtBackend(package, config)
    with caplog.at_level(logging.WARNING):
        backend = OrtBackend(package, replace(config, provider_fallback=True))
    assert "going on without: the execution provider 'cpu_ep'" in caplog.text
    assert backend.run([Row(backend.open(), [1])]).rows[0].error is None
