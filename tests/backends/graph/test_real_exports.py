"""What real exporters wrote as plain attention is recognised, whatever the architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.package.load import load_package
from tokenmill.package.model_package import StateLayout

FIXTURES = Path(__file__).parents[2] / "fixtures"
FORMS = {
    "bare",
    "mobius-default",
    "mobius-f16",
    "mobius-standard",
    "optimum",
    "optimum-merged",
    "transformers-js",
}
PLAIN = sorted(path for path in FIXTURES.glob("*/*") if path.name in FORMS)

MOVED = "rotary embedding of 2 layers moved into the attention"
INLINED = "the branch with a past inlined"
WINDOWS = dict.fromkeys(("gemma2", "gemma3"), ", 1 with a window of 16")
ROTATES_ITSELF = {"gemma2", "gemma3", "llama", "qwen2", "qwen3"}


@pytest.mark.parametrize("directory", PLAIN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_attention_of_a_real_export_shares_buffers(directory: Path) -> None:
    shape, form = directory.parent.name, directory.name
    package = load_package(directory)
    assert package.state.layout is StateLayout.PLAIN
    result = rewrite_decoder(package, BackendConfig())
    done = f"attention of 2 layers rewritten to shared buffers{WINDOWS.get(shape, '')}"
    assert result.notes[0] == done
    assert result.shares_buffers
    assert (MOVED in result.notes) == (shape in ROTATES_ITSELF and form != "mobius-f16")
    assert (INLINED in result.notes) == (form == "optimum-merged")


def test_there_are_exports_to_look_at() -> None:
    assert {path.parent.name for path in PLAIN} >= {
        "gemma3",
        "gpt-neox",
        "gpt2",
        "llama",
        "phi",
        "qwen2",
        "qwen3",
    }
