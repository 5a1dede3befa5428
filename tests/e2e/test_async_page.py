"""The programs that docs/async.md shows are run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_genai import write_speaking

PAGE = (Path(__file__).parents[2] / "docs" / "async.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def run(program, tmp_path):
    directory = write_speaking(tmp_path / "model")
    assert program.count('"smollm2"') == 1
    return subprocess.run(
        [sys.executable, "-c", program.replace('"smollm2"', repr(str(directory)))],
        capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"TOKENMILL_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip


SHOWN = (r"\[8, 8, 8\]$", r"\['length', 'length'\]\n(cancelled)?$")


@pytest.mark.parametrize(("program", "shown"), list(zip(PROGRAMS, SHOWN, strict=True)))
def test_the_programs_of_the_page_run(program, shown, tmp_path):
    result = run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(shown, result.stdout.rstrip())
