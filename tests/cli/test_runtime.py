"""`tokenmill show --load`: how a loaded model is run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.tiny_genai import write_genai
from tokenmill.backends import select
from tokenmill.backends.base import BackendReport
from tokenmill.cli.main import app, run_command
from tokenmill.cli.runtime import runtime_section, runtime_text
from tokenmill.core.provider import Provider

_REPORT = BackendReport(
    backend="ort",
    layout="shared buffers, 8 rows of 512 tokens",
    rewrites=("only wanted rows reach the head", "lengths in place of the mask"),
    claims={"npu": {"MatMul": 7, "Add": 2}, "idle": {}, "cpu": {"GroupQueryAttention": 2}},
)


def test_the_section_is_json_and_keeps_the_order() -> None:
    section = json.loads(json.dumps(runtime_section(_REPORT)))
    assert section == {
        "backend": "ort",
        "layout": "shared buffers, 8 rows of 512 tokens",
        "rewrites": ["only wanted rows reach the head", "lengths in place of the mask"],
        "claims": {
            "npu": {"MatMul": 7, "Add": 2},
            "idle": {},
            "cpu": {"GroupQueryAttention": 2},
        },
    }
    assert [*section["claims"]] == ["npu", "idle", "cpu"]


def test_the_section_as_text() -> None:
    assert runtime_text(runtime_section(_REPORT)).splitlines() == [
        "runtime: ort",
        "  state        shared buffers, 8 rows of 512 tokens",
        "  rewrite      only wanted rows reach the head",
        "  rewrite      lengths in place of the mask",
        "  npu          9 nodes: MatMul x 7, Add x 2",
        "  idle         nothing",
        "  cpu          2 nodes: GroupQueryAttention x 2",
    ]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `show --load` asks backends for; they report `_REPORT`."""
    calls: list[Any] = []

    def open_backend(package: Any, config: Any, name: str) -> Any:
        calls.append((config.providers, name))
        return SimpleNamespace(report=lambda: _REPORT, shutdown=lambda: calls.append("shut down"))

    monkeypatch.setattr(select, "open_backend", open_backend)
    return calls


def _show(*arguments: str) -> int:
    return run_command(lambda: app(["show", *arguments], prog_name="tokenmill"))


def test_show_loads_only_when_asked(
    tmp_path: Path, loaded: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_genai(tmp_path)
    assert _show(str(tmp_path), "--json") == 0
    assert "runtime" not in json.loads(capsys.readouterr().out)
    assert loaded == []


def test_show_load_uses_the_options_and_shuts_down(
    tmp_path: Path, loaded: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_genai(tmp_path)
    ep = ("--ep", "plugin:/npu.so|device=NPU|opt.a=b", "--ep", "cuda|device_id=1")
    assert _show(str(tmp_path), "--load", "--json", "--backend", "ort", *ep) == 0
    assert json.loads(capsys.readouterr().out)["runtime"] == runtime_section(_REPORT)
    providers = (
        Provider("", {"a": "b"}, Path("/npu.so"), "NPU"),
        Provider("cuda", {"device_id": "1"}),
    )
    assert loaded == [(providers, "ort"), "shut down"]
    assert _show(str(tmp_path), "--load") == 0
    assert capsys.readouterr().out.endswith(runtime_text(runtime_section(_REPORT)) + "\n")


def test_show_load_refuses_a_provider_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_genai(tmp_path)
    assert _show(str(tmp_path), "--load", "--ep", "plugin:missing.so") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"the plug-in {Path.cwd() / 'missing.so'} is not available" in shown.err
    assert "why: there is no such file" in shown.err


def test_malformed_providers_are_refused_by_the_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_genai(tmp_path)
    assert _show(str(tmp_path), "--ep", "cuda|fast") == 2
    assert "error: ep has 'cuda|fast'" in capsys.readouterr().err
    monkeypatch.setenv("TOKENMILL_EP", "plugin:/npu.so|threads=2")
    assert _show(str(tmp_path)) == 2
    shown = capsys.readouterr().err
    assert "error: TOKENMILL_EP has 'plugin:/npu.so|threads=2'" in shown
    assert "why: a plug-in has device=, ep= and opt.NAME=, and no 'threads'" in shown
