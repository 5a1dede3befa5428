"""Loading a package needs no graph library, and no runtime."""

import subprocess
import sys

import pytest

from support.tiny_genai import write_genai

HEAVY = ("onnx", "onnxruntime", "gguf", "huggingface_hub", "tokenizers", "jinja2")

SCRIPT = """
import sys
from pathlib import Path
from tokenmill.package.load import load_package
from tokenmill.package.describe import describe, to_text
to_text(describe(load_package(Path(sys.argv[1]))))
print([name for name in {heavy} if name in sys.modules])
"""


def test_showing_a_tiny_package_imports_nothing_heavy(tmp_path):
    script = SCRIPT.format(heavy=HEAVY)
    directory = write_genai(tmp_path, tokenizer_config={"chat_template": "x"})
    result = subprocess.run(
        [sys.executable, "-c", script, str(directory)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.model
def test_showing_a_package_imports_nothing_heavy(smollm2):
    script = SCRIPT.format(heavy=HEAVY)
    result = subprocess.run(
        [sys.executable, "-c", script, str(smollm2)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_public_names_are_imported_when_used():
    script = f"import sys, tokenmill; print([n for n in {(*HEAVY, 'numpy')} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
