"""The commands that docs/providers.md shows are run as they stand there, and its forms are read."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.core.provider import parse_provider

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
FORMS = [
    form.replace("\\|", "|") for form in re.findall(r"^\| `(\S+)` \| ", PAGE, flags=re.MULTILINE)
    if not form.startswith(("onnxruntime-", "nxrt-"))
]  # fmt: skip
SHELL = re.search(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)[1]
COMMANDS = re.findall(r"^tokenmill .*$", PAGE.replace(SHELL, ""), flags=re.MULTILINE)
GET_OPENVINO = "get it with: pip install onnxruntime-ep-openvino"
HAS_OPENVINO = importlib.util.find_spec("onnxruntime_ep_openvino") is not None


def run(script, tmp_path):
    """Runs shell text in which `tokenmill` and `python` are this environment's."""
    for name, arguments in (("tokenmill", " -m tokenmill"), ("python", "")):
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        file.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.run(
        ["sh", "-e", "-c", script], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PATH": path, "PYTHONPATH": source},
    )  # fmt: skip


def test_every_form_is_read():
    assert len(FORMS) == 6
    plugins = [parse_provider(form).library is not None for form in FORMS]
    assert plugins == [False, False, True, True, True, True]


def test_the_page_shows_commands():
    assert len(COMMANDS) == 2
    assert SHELL.count("tokenmill ") == 2


@pytest.mark.model
@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command, tmp_path):
    result = run(command, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.model
def test_show_load_of_a_real_model(smollm2, tmp_path):
    told = json.loads(run(f"tokenmill show '{smollm2}' --load --json", tmp_path).stdout)["runtime"]
    assert told["backend"] == "ort"
    assert [*told["claims"]] == ["cpu"]
    assert told["claims"]["cpu"]["GroupQueryAttention"] == 30


@pytest.mark.model
@pytest.mark.usefixtures("smollm2")
@pytest.mark.skipif(not HAS_OPENVINO, reason=GET_OPENVINO)
def test_the_commands_for_openvino_run(tmp_path):
    result = run(re.sub(r"^pip .*\n", "", SHELL), tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^  openvino +\d+ nodes: MatMulNBits", result.stdout, flags=re.MULTILINE)
    assert "  cpu          30 nodes: GroupQueryAttention x 30" in result.stdout
    assert result.stdout.rstrip().endswith("Hello! How can I assist you today?")
