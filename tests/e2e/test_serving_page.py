"""The programs that docs/serving.md shows are run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_genai import write_speaking

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
SHOWN = (r"20 \{'length': 21\}$", r"\[0(, 0)*\]$")


@pytest.mark.parametrize(("program", "shown"), list(zip(PROGRAMS, SHOWN, strict=True)))
def test_the_programs_of_the_page_run(program, shown, tmp_path):
    directory = write_speaking(tmp_path / "model")
    assert program.count('"smollm2"') == 1
    result = subprocess.run(
        [sys.executable, "-c", program.replace('"smollm2"', repr(str(directory)))],
        capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"TOKENMILL_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert re.search(shown, result.stdout.rstrip())
