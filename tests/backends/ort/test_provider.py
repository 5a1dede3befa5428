from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tokenmill.backends.ort.plugin import PluginDevice
from tokenmill.backends.ort.provider import (
    ChosenProvider,
    check_claims,
    choose_providers,
    short_name,
)
from tokenmill.core.errors import InvalidOption, ProviderUnavailable
from tokenmill.core.provider import Provider

_AVAILABLE = ["CUDAExecutionProvider", "CPUExecutionProvider"]
_CPU = ChosenProvider("CPUExecutionProvider")
_CUDA = ChosenProvider("CUDAExecutionProvider")
_LIBRARY = Path("/lib/npu.so")


@pytest.mark.parametrize("name", ["cuda", "CUDA", "CUDAExecutionProvider"])
def test_short_and_full_names_mean_the_same(name: str) -> None:
    chosen = choose_providers([Provider(name, {"a": "b"})], [], _AVAILABLE)
    assert chosen == [ChosenProvider("CUDAExecutionProvider", {"a": "b"}), _CPU]


def test_the_package_is_asked_where_the_caller_says_nothing() -> None:
    packaged = [("cuda", {"device_id": "1"})]
    one = ChosenProvider("CUDAExecutionProvider", {"device_id": "1"})
    assert choose_providers([], packaged, _AVAILABLE) == [one, _CPU]
    assert choose_providers([Provider("cpu")], packaged, _AVAILABLE) == [_CPU]
    assert choose_providers([], [], _AVAILABLE) == [_CPU]


def test_of_a_package_nothing_behind_the_cpu_is_asked_for() -> None:
    packaged: list[tuple[str, Mapping[str, str]]] = [("cpu", {"x": "1"}), ("tensorrt", {})]
    assert choose_providers([], packaged, _AVAILABLE) == [_CPU]
    assert choose_providers([], [("cuda", {}), *packaged], _AVAILABLE) == [_CUDA, _CPU]


def test_a_plug_in_takes_its_place_among_the_others() -> None:
    npu = Provider("", {"a": "b"}, _LIBRARY, "NPU")
    chosen = choose_providers(
        [npu, Provider("cuda")],
        [],
        _AVAILABLE,
        find_plugin=lambda provider: PluginDevice("NpuEp", provider.device),
    )
    assert chosen == [ChosenProvider("NpuEp", {"a": "b"}, "NPU"), _CUDA, _CPU]


def test_a_missing_provider_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        choose_providers([Provider("openvino")], [], _AVAILABLE)
    assert caught.value.what == "the execution provider 'openvino' is not available"
    assert caught.value.why == "this ONNX Runtime has cpu, cuda"
    assert "Use one of cpu, cuda, a plug-in (plugin:PATH)" in caught.value.fix


def test_fallback_leaves_out_what_is_missing_and_tells() -> None:
    def no_plugin(provider: Provider) -> PluginDevice:
        raise ProviderUnavailable(f"no {provider.library}")

    told: list[ProviderUnavailable] = []
    asked = [Provider("openvino"), Provider("", {}, _LIBRARY), Provider("cuda")]
    chosen = choose_providers(asked, [], _AVAILABLE, fallback=told.append, find_plugin=no_plugin)
    assert chosen == [_CUDA, _CPU]
    assert [error.what for error in told] == [
        "the execution provider 'openvino' is not available",
        "no /lib/npu.so",
    ]
    assert choose_providers(asked[:1], [], _AVAILABLE, fallback=told.append) == [_CPU]


def test_the_cpu_before_others_is_refused() -> None:
    with pytest.raises(InvalidOption, match="'cuda' stands behind 'cpu'"):
        choose_providers([Provider("cpu"), Provider("cuda")], [], _AVAILABLE)


def test_a_provider_twice_is_refused() -> None:
    with pytest.raises(InvalidOption, match="'cuda' is there 2 times"):
        choose_providers([Provider("cuda"), Provider("CUDA", {"a": "b"})], [], _AVAILABLE)


def test_options_of_the_cpu_would_be_dropped_without_a_word_and_are_refused() -> None:
    with pytest.raises(InvalidOption, match="cpu has no option 'use_arena'"):
        choose_providers([Provider("cpu", {"use_arena": "0"})], [], _AVAILABLE)


def test_a_session_that_went_on_without_a_provider_is_noticed() -> None:
    claims = {"cpu": {"MatMul": 2}}
    with pytest.raises(ProviderUnavailable, match="ONNX Runtime went on with cpu"):
        check_claims([_CUDA, _CPU], ["CPUExecutionProvider"], claims)
    told: list[ProviderUnavailable] = []
    check_claims([_CUDA, _CPU], ["CPUExecutionProvider"], claims, fallback=told.append)
    assert [error.what for error in told] == ["the execution provider 'cuda' is not available"]


def test_a_provider_that_takes_no_node_is_noticed() -> None:
    idle: Mapping[str, Mapping[str, int]] = {"cuda": {}, "cpu": {"MatMul": 2}}
    with pytest.raises(ProviderUnavailable, match="'cuda' runs no part of this model") as caught:
        check_claims([_CUDA, _CPU], _AVAILABLE, idle)
    assert caught.value.why == "it took none of the graph's operators; cpu would run all of it"
    told: list[ProviderUnavailable] = []
    check_claims([_CUDA, _CPU], _AVAILABLE, idle, fallback=told.append)
    assert len(told) == 1


def test_a_provider_that_takes_a_part_is_enough_and_an_idle_cpu_is_no_fault() -> None:
    check_claims([_CUDA, _CPU], _AVAILABLE, {"cuda": {"MatMul": 1}, "cpu": {}})


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("OpenVINOExecutionProvider", "openvino"),
        ("OpenVINOExecutionProvider.AUTO", "openvino.auto"),
        ("cpu_ep", "cpu_ep"),
    ],
)
def test_short_name(name: str, short: str) -> None:
    assert short_name(name) == short
