"""The command line, started as a module."""

import subprocess
import sys

import tokenmill


def test_python_m_tokenmill_is_the_command_line():
    command = [sys.executable, "-m", "tokenmill", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"tokenmill {tokenmill.__version__}\n"
