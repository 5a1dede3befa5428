"""The commands that docs/memory.md shows are run as they stand there, and its tables are true."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.core.byte_size import parse_bytes

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
COMMANDS = [
    line.split("#")[0].strip() for line in re.findall(r"^tokenmill .*$", PAGE, flags=re.MULTILINE)
]
SIZES = re.findall(
    r"^\| (`.*`) \| ([\d,]+) \|$",
    PAGE[PAGE.index("## Sizes") : PAGE.index("## To fit more")],
    flags=re.MULTILINE,
)
DOCUMENTED = set(re.findall(r"`([\w.]+)(?:\[\])?`", PAGE))


MODEL = Path(__file__).parents[1] / "fixtures" / "llama" / "genai-int4"


def tokenmill(command, model=MODEL):
    words = shlex.split(command.replace("MODEL", str(model)))[1:]
    return subprocess.run(
        [sys.executable, "-m", "tokenmill", *words],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TOKENMILL_CONFIG": "", "TOKENMILL_MEMORY_BUDGET": ""},
    )  # fmt: skip


def test_the_page_shows_commands_and_sizes():
    assert len(COMMANDS) == 3
    assert len(SIZES) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command):
    result = tokenmill(command)
    assert result.returncode == 0, result.stderr
    if "--json" not in command:
        assert "  for requests " in result.stdout
        assert "\nto fit more:\n" in result.stdout


@pytest.mark.parametrize(("written", "size"), SIZES)
def test_a_size_is_what_the_page_says(written, size):
    for text in re.findall(r"`(.*?)`", written):
        assert parse_bytes(text) == int(size.replace(",", ""))


def test_every_field_is_documented():
    section = json.loads(tokenmill("tokenmill plan MODEL --json").stdout)
    fields = set()
    for name, value in section.items():
        if isinstance(value, dict):
            fields |= {f"{name}.{inner}" for inner in value}
        else:
            fields.add(name)
            inner = value if isinstance(value, list) else []
            fields |= {field for item in inner for field in item}
    assert {"fits", "knobs", "bytes_each", "effect"} <= fields
    assert fields - DOCUMENTED == set()


def test_a_size_that_is_none_is_refused():
    result = tokenmill("tokenmill plan MODEL --memory-budget much")
    assert result.returncode == 2
    assert "memory_budget is 'much'" in result.stderr


@pytest.mark.model
def test_the_example_of_the_page(smollm2):
    """Its figures of state are those of the model; those of the machine are another's."""
    result = tokenmill("tokenmill plan MODEL --memory-budget 700MiB", smollm2)
    assert result.returncode == 0, result.stderr
    shown = re.search(r"^  weights.*?```", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
    example = shown[shown.index("   tokens ") : shown.index("```")]
    assert example in result.stdout
    assert "  weights        108.4 MiB  in their files; loading took" in result.stdout
