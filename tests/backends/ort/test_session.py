"""Loading: what is wrong with a package is said by the file's name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from tokenmill.backends.config import BackendConfig, Provider
from tokenmill.backends.ort import session as session_module
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.reference.backend import ReferenceBackend
from tokenmill.core.errors import (
    BackendError,
    CorruptFile,
    InvalidOption,
    InvalidPackage,
    ProviderUnavailable,
    UnsupportedModel,
)
from tokenmill.core.rows import Row
from tokenmill.package.model_package import (
    ModelPackage,
    Role,
    StateContract,
    StateLayout,
)

_ONE = BackendConfig(threads=1, max_rows=1)
both = pytest.mark.parametrize("kind", [OrtBackend, ReferenceBackend])
Kind = type[OrtBackend] | type[ReferenceBackend]


@pytest.fixture
def package(tmp_path: Path) -> ModelPackage:
    return make_package(tmp_path, TinySpec(external=True))


@both
def test_a_missing_model_file(package: ModelPackage, kind: Kind) -> None:
    package.decoder.file.unlink()
    with pytest.raises(InvalidPackage, match=r"model\.onnx"):
        kind(package, _ONE)


@both
@pytest.mark.parametrize("content", [b"", b"garbage" * 50])
def test_a_damaged_model_file(package: ModelPackage, kind: Kind, content: bytes) -> None:
    package.decoder.file.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"model\.onnx"):
        kind(package, _ONE)


@both
def test_a_truncated_model_file(package: ModelPackage, kind: Kind) -> None:
    os.truncate(package.decoder.file, 1500)
    with pytest.raises(CorruptFile, match=r"model\.onnx"):
        kind(package, _ONE)


@both
def test_missing_external_weights(package: ModelPackage, kind: Kind) -> None:
    (package.root / "model.onnx.data").unlink()
    with pytest.raises(InvalidPackage, match=r"model\.onnx\.data is missing"):
        kind(package, _ONE)


@both
def test_truncated_external_weights(package: ModelPackage, kind: Kind) -> None:
    os.truncate(package.root / "model.onnx.data", 5000)
    with pytest.raises(CorruptFile, match=r"model\.onnx\.data is truncated: it has 5000 bytes"):
        kind(package, _ONE)


@both
def test_a_provider_that_is_not_here(package: ModelPackage, kind: Kind) -> None:
    config = replace(_ONE, providers=(Provider("tensorrt"),))
    with pytest.raises(ProviderUnavailable, match="cpu"):
        kind(package, config)
    backend = kind(package, replace(config, provider_fallback=True))
    assert backend.run([Row(backend.open(), [1])]).rows[0].error is None


def test_a_provider_that_onnx_runtime_drops_silently(
    package: ModelPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = session_module.onnxruntime
    session = open_session(package, _ONE)
    monkeypatch.setattr(
        runtime, "get_available_providers", lambda: ["Fake", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(runtime, "InferenceSession", lambda *_, **__: session)
    with pytest.raises(ProviderUnavailable, match="went on with"):
        open_session(package, replace(_ONE, providers=(Provider("fake"),)))


def test_threads_below_one_are_refused(package: ModelPackage) -> None:
    with pytest.raises(InvalidOption, match="threads"):
        OrtBackend(package, replace(_ONE, threads=0))


def test_another_state_layout_is_refused(package: ModelPackage) -> None:
    state = StateContract(StateLayout.PLAIN, package.state.attention)
    with pytest.raises(UnsupportedModel, match="'plain'"):
        OrtBackend(replace(package, state=state), _ONE)


@both
def test_an_input_that_nobody_feeds_is_named(package: ModelPackage, kind: Kind) -> None:
    bindings = tuple(
        replace(binding, role=Role.HIDDEN_STATES)
        if binding.role is Role.ATTENTION_MASK
        else binding
        for binding in package.decoder.bindings
    )
    decoder = replace(package.decoder, bindings=bindings)
    with pytest.raises(UnsupportedModel, match="attention_mask"):
        kind(replace(package, components={"decoder": decoder}), _ONE)


def test_a_failing_step_is_a_backend_error_and_advances_nothing(package: ModelPackage) -> None:
    # The embedding has 96 rows; a package that claims more lets a token through to the runtime.
    backend = OrtBackend(replace(package, vocab_size=96), _ONE)
    backend._vocab_size = 1000
    sequence = backend.open()
    with pytest.raises(BackendError, match="a model step failed"):
        backend.run([Row(sequence, [500])])
    backend.commit(sequence, 0)
    assert backend.length(sequence) == 0
    assert backend.run([Row(sequence, [5])]).rows[0].error is None
    backend.check_integrity()


def test_more_threads_than_processors_are_warned_of(
    package: ModelPackage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "usable_processors", lambda: 2)
    for threads in (None, 1, 2):
        open_session(package, BackendConfig(threads=threads))
    assert caplog.messages == []
    open_session(package, BackendConfig(threads=3))
    (message,) = caplog.messages
    assert message == (
        "threads is 3, and this process may use 2 processors: "
        "threads that wait for one another make each step slower"
    )
