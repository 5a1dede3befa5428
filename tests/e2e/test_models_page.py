"""The commands and the catalogue that docs/models.md shows are run and read as they stand there."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import hub_imitation as imitation
from support.file_server import file_server
from support.hub_imitation import FILES, hub_imitation
from support.tiny_genai import write_genai
from support.tiny_gguf import write_tiny_gguf
from support.tiny_tokenizers import with_decoder
from tokenmill.package.catalogue_entry import CatalogueEntry, HubEntry
from tokenmill.package.catalogue_file import read_catalogue_file

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
COMMANDS = re.findall(r"^tokenmill .*$", PAGE, flags=re.MULTILINE)
CATALOGUE = re.search(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)[1]
PACKAGE = Path(__file__).parents[1] / "fixtures" / "qwen2" / "model-package"


def tokenmill(command, **environment):
    words = shlex.split(command.replace("DIRECTORY", str(PACKAGE)))[1:]
    return python("from tokenmill.cli.main import main; main()", *words, **environment)


def python(program, *words, **environment):
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment,
    )  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The environment of a machine with a hub and a catalogue of its own; nothing is cached."""
    write_tiny_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    made = write_genai(tmp_path / "made")
    export = {
        "config.json": b'{"vocab_size": 64}',
        "tokenizer.json": with_decoder(None, ["a", "hello"]).to_str().encode(),
        "onnx/model.onnx": b"full",
        "onnx/model_q4.onnx": (made / "model.onnx").read_bytes(),
    }
    monkeypatch.setitem(FILES, "main", export)
    monkeypatch.setitem(FILES, "v2", export)
    monkeypatch.setattr(imitation, "REPOSITORY", ["org", "name"])
    config = tmp_path / "config" / "tokenmill"
    config.mkdir(parents=True)
    with file_server({"/tiny.gguf": data}) as server, hub_imitation() as endpoint:
        digest = hashlib.sha256(data).hexdigest()
        entries = (
            f'[{name}]\nurl = "{server.url}/tiny.gguf"\nsha256 = "{digest}"\n'
            for name in ("smollm2", "mine")
        )
        (config / "catalogue.toml").write_text("".join(entries))
        yield {
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "TOKENMILL_CACHE_DIR": str(tmp_path / "cache"),
            "HF_ENDPOINT": endpoint,
        }


def test_the_page_shows_commands():
    assert len(COMMANDS) == 9


def test_the_commands_of_the_page_run_in_their_order(machine):
    for command in COMMANDS:
        if command == "tokenmill rm mine org/name":
            tokenmill("tokenmill pull mine", **machine)
        result = tokenmill(command, **machine)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        assert (result.stdout + result.stderr).strip()


def test_a_catalogues_variant_is_shown_and_loaded_at_every_door(machine):
    catalogue = Path(machine["XDG_CONFIG_HOME"]) / "tokenmill" / "catalogue.toml"
    catalogue.write_text('[ours]\nhub = "org/name"\nvariant = "q4"\n')
    assert tokenmill("tokenmill pull org/name", **machine).returncode == 0
    result = tokenmill("tokenmill show ours", **machine)
    assert result.returncode == 0, result.stderr
    assert "onnx/model_q4.onnx" in result.stdout
    result = tokenmill("tokenmill generate ours hello --max-tokens 2", **machine)
    assert result.returncode == 0, result.stderr
    result = python("from tokenmill import LLM; LLM('ours')", **machine)
    assert result.returncode == 0, result.stderr


def test_the_catalogue_of_the_page_is_read(tmp_path):
    (tmp_path / "catalogue.toml").write_text(CATALOGUE)
    entries = read_catalogue_file(tmp_path / "catalogue.toml")
    assert list(entries) == ["mine", "halves", "ours", "packed"]
    assert isinstance(entries["mine"], CatalogueEntry)
    assert isinstance(entries["ours"], HubEntry)
