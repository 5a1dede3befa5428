"""The commands and the Python that README.md shows are run as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip() for line in re.findall(r"^tokenmill .*$", README, flags=re.MULTILINE)
]
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True, text=True, timeout=300, check=False, **options,
    )  # fmt: skip


def test_the_readme_shows_commands_and_python():
    assert len(COMMANDS) == 8
    assert len(PYTHON) == 1


@pytest.mark.model
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command, smollm2_gguf, tmp_path):
    environment = dict(os.environ)
    if "FILE.gguf" in command:
        command = command.replace("FILE.gguf", str(smollm2_gguf))
        environment["TOKENMILL_CACHE_DIR"] = str(tmp_path)
    words = shlex.split(command)[1:]
    main = "from tokenmill.cli.main import main; main()"
    result = run([main, *words], input="Hello\n/bye\n", env=environment)
    assert result.returncode == 0, result.stderr
    assert (result.stdout + result.stderr).strip()


@pytest.mark.model
def test_the_python_of_the_readme_runs(smollm2):
    result = run([PYTHON[0]])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" Paris")


def test_the_set_up_commands_are_two():
    block = re.search(r"```\n(make .*?)```", README, flags=re.DOTALL)[1]
    assert re.findall(r"^make (\w+)", block, flags=re.MULTILINE) == ["demo", "test"]
