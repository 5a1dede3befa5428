from __future__ import annotations

import pytest

from tokenmill.backends.config import Provider
from tokenmill.backends.ort.provider import check_providers, choose_providers, short_name
from tokenmill.core.errors import ProviderUnavailable

_AVAILABLE = ["CUDAExecutionProvider", "CPUExecutionProvider"]
_CPU = Provider("CPUExecutionProvider")


@pytest.mark.parametrize("name", ["cuda", "CUDA", "CUDAExecutionProvider"])
def test_short_and_full_names_mean_the_same(name: str) -> None:
    chosen = choose_providers([Provider(name, {"a": "b"})], [], _AVAILABLE, fallback=False)
    assert chosen == [Provider("CUDAExecutionProvider", {"a": "b"})]


def test_the_package_is_asked_where_the_caller_says_nothing() -> None:
    packaged = [("cuda", {"device_id": "1"})]
    assert choose_providers([], packaged, _AVAILABLE, fallback=False) == [
        Provider("CUDAExecutionProvider", {"device_id": "1"})
    ]
    assert choose_providers([Provider("cpu")], packaged, _AVAILABLE, fallback=False) == [_CPU]
    assert choose_providers([], [], _AVAILABLE, fallback=False) == [_CPU]


def test_a_missing_provider_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        choose_providers([Provider("openvino")], [], _AVAILABLE, fallback=False)
    assert caught.value.what == "the execution provider 'openvino' is not available"
    assert caught.value.why == "this ONNX Runtime has cpu, cuda"
    assert "Use one of cpu, cuda" in caught.value.fix


def test_fallback_leaves_out_what_is_missing() -> None:
    asked = [Provider("openvino"), Provider("cuda")]
    assert choose_providers(asked, [], _AVAILABLE, fallback=True) == [
        Provider("CUDAExecutionProvider")
    ]
    assert choose_providers(asked[:1], [], _AVAILABLE, fallback=True) == [_CPU]


def test_a_session_that_went_on_without_a_provider_is_noticed() -> None:
    chosen = [Provider("CUDAExecutionProvider")]
    with pytest.raises(ProviderUnavailable, match="ONNX Runtime went on with cpu"):
        check_providers(chosen, ["CPUExecutionProvider"], fallback=False)
    check_providers(chosen, ["CPUExecutionProvider"], fallback=True)
    check_providers(chosen, _AVAILABLE, fallback=False)


def test_short_name() -> None:
    assert short_name("OpenVINOExecutionProvider") == "openvino"
