"""The command line from outside: exit codes, and errors that say what, why and what to do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.cli import main


def tokenmill(*arguments, stdin="", **environment):
    return subprocess.run(
        [sys.executable, "-c", "from tokenmill.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def refused(result, *words):
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    return True


def test_a_name_that_is_nothing(tmp_path):
    result = tokenmill("generate", "smollm", "hi", TOKENMILL_CACHE_DIR=str(tmp_path))
    assert refused(result, "no model 'smollm'", "fix: Did you mean 'smollm2'?")


def test_a_file_that_is_missing(tmp_path):
    assert refused(tokenmill("import", str(tmp_path / "x.gguf")), "no file", "fix:")


def test_a_directory_without_a_model(tmp_path):
    assert refused(tokenmill("show", str(tmp_path)), "holds no model", "genai_config.json")


def test_a_file_that_is_no_gguf(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_text("hello")
    assert refused(tokenmill("generate", str(file), "hi"), "not a GGUF file")


def test_an_option_with_a_wrong_value(tmp_path):
    assert refused(tokenmill("show", str(tmp_path), "--threads", "0"), "threads is 0")
    assert tokenmill("show", str(tmp_path), "--threads", "two").returncode == 2


@pytest.mark.parametrize("command", [("generate", "hi"), ("run",)], ids=lambda words: words[0])
def test_a_request_that_cannot_run_is_refused_before_the_model_is_looked_for(command):
    name, *prompt = command
    wrong = tokenmill(name, "no-such-model", *prompt, "--temperature=-1")
    assert refused(wrong, "temperature is -1.0")
    assert "no-such-model" not in wrong.stderr
    assert refused(tokenmill(name, "no-such-model", *prompt, "--top-p", "1.5"), "top_p is 1.5")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("list", {"--json", "--cache-dir", "--help"}),
        ("rm", {"--all", "--cache-dir", "--help"}),
        ("import", {"--output", "--precision", "--cache-dir", "--help"}),
        ("pull", {"--ep", "--precision", "--variant", "--revision", "--files", "--offline",
                  "--no-offline", "--cache-dir", "--help"}),
    ],
)  # fmt: skip
def test_a_command_shows_the_options_that_it_has_a_use_for(command, options):
    text = tokenmill(command, "--help", COLUMNS="200", NO_COLOR="1").stdout
    assert (
        set(re.findall(r"^\W*(--[\w-]+)", text, flags=re.MULTILINE))
        | set(re.findall(r"(--no-[\w-]+)", text))
        == options
    )


def test_a_variant_that_a_directory_does_not_have(tmp_path):
    root = Path(__file__).parents[1] / "fixtures" / "llama" / "genai-fp32"
    result = tokenmill("generate", str(root), "hi", "--variant", "q4")
    assert refused(result, "variant is 'q4'", "model.onnx", "fix: Leave it out")


def test_no_command_shows_help():
    result = tokenmill()
    assert "generate" in result.stdout + result.stderr


@pytest.mark.model
def test_a_provider_that_is_not_there(smollm2):
    result = tokenmill("generate", str(smollm2), "hi", "--ep", "cuda", "--max-tokens", "1")
    assert refused(result, "cuda", "cpu", "fix:")


@pytest.mark.model
def test_a_prompt_past_the_context(smollm2):
    words = " ".join(["word"] * 40)
    result = tokenmill("generate", str(smollm2), words, "--max-context", "32")
    assert refused(result, "the context is 32 tokens", "fix:")


@pytest.mark.model
def test_a_truncated_gguf(smollm2_gguf, tmp_path):
    file = tmp_path / "cut.gguf"
    with smollm2_gguf.open("rb") as whole:
        file.write_bytes(whole.read(50_000_000))
    result = tokenmill("generate", str(file), "hi", TOKENMILL_CACHE_DIR=str(tmp_path / "cache"))
    assert refused(result, "cut.gguf", "98362432", "50000000")
    assert list((tmp_path / "cache").rglob("*.onnx")) == []


@pytest.mark.model
def test_generate_streams_an_answer_with_statistics_and_a_trace(smollm2, tmp_path):
    trace = tmp_path / "trace.json"
    result = tokenmill(
        "generate", str(smollm2), "-", "--max-tokens", "32", "--stats", "--trace", str(trace),
        "--trace-content", stdin="Tell me the capital of France.",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"
    for word in ("first token", "prefill", "decode", "peak memory"):
        assert word in result.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event["name"] for event in events]
    for station in (
        "request",
        "prepare",
        "queue",
        "admit",
        "recall",
        "prefill",
        "decode",
        "finish",
    ):
        assert station in names
    content = next(event["args"] for event in events if event["name"] == "request")
    assert content["sampling"]["temperature"] == 0.0
    assert len(content["prompt_token_ids"]) > 10


@pytest.mark.model
def test_raw_leaves_out_the_template(smollm2):
    result = tokenmill(
        "generate", str(smollm2), "The capital of France is", "--raw", "--max-tokens", "2"
    )
    assert result.stdout == " Paris.\n"


@pytest.mark.model
def test_run_chats_line_by_line(smollm2):
    lines = "Tell me the capital of France.\n/clear\n\n/bye\nnot read\n"
    result = tokenmill("run", str(smollm2), "--max-tokens", "16", stdin=lines)
    assert (result.returncode, result.stdout) == (0, "The capital of France is Paris.\n")


@pytest.mark.model
def test_show_tells_roles_with_their_reasons(smollm2):
    text = tokenmill("show", str(smollm2))
    assert "is logits (genai_config.json model.decoder.outputs.logits)" in text.stdout
    told = json.loads(tokenmill("show", str(smollm2), "--json").stdout)
    assert told["state"]["bytes_per_token"] == 46080
    assert told["text"]["eos_token_ids"] == [0, 2]


@pytest.mark.model
def test_a_timeout_exits_with_four(smollm2):
    result = tokenmill("generate", str(smollm2), "Count to a million.", "--timeout", "0.4")
    assert result.returncode == 4
    assert "timeout" in result.stderr


def test_an_interrupt_says_so_and_exits_with_four(monkeypatch, capsys):
    def interrupted(model_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_settings", interrupted)
    assert main.run_command(lambda: main.app(["list"], prog_name="tokenmill")) == 4
    assert capsys.readouterr().err == "cancelled\n"
