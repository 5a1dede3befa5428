import json

import pytest

from support.tiny_gguf import write_tiny_gguf
from tokenmill.package.gguf.importer import import_gguf


def documents(tmp_path, **fields):
    write_tiny_gguf(tmp_path / "x.gguf", **fields)
    out = import_gguf(tmp_path / "x.gguf", tmp_path / "out")
    return {path.name: json.loads(path.read_text()) for path in out.glob("*.json")}


def test_a_file_without_sampling_keys_is_greedy(tmp_path):
    search = documents(tmp_path)["genai_config.json"]["search"]
    assert search["do_sample"] is False
    assert search["past_present_share_buffer"] is True


def test_sampling_keys_become_defaults(tmp_path):
    sampling = {
        "general.sampling.temp": 0.8,
        "general.sampling.top_k": 40,
        "general.sampling.min_p": 0.05,
    }
    found = documents(tmp_path, metadata=sampling)
    defaults = {"temperature": 0.8, "top_k": 40, "min_p": 0.05}
    assert found["tokenmill.json"]["defaults"] == defaults
    search = found["genai_config.json"]["search"]
    assert (search["do_sample"], search["temperature"], search["top_k"]) == (True, 0.8, 40)
    assert "min_p" not in search
    assert found["generation_config.json"]["min_p"] == 0.05


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_the_template_is_where_its_readers_look(tmp_path, tokenizer):
    template = "{{ messages[0].content }}é"
    found = documents(tmp_path, template=template, tokenizer=tokenizer)
    assert found["tokenizer_config.json"]["chat_template"] == template
    assert (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8") == template


def test_further_templates_keep_their_names(tmp_path):
    named = {"tokenizer.chat_template.tool_use": "tools"}
    found = documents(tmp_path, template="plain", metadata=named)
    assert found["tokenizer_config.json"]["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]


def test_roles_and_ends_are_in_every_document(tmp_path):
    found = documents(tmp_path)
    model = found["genai_config.json"]["model"]
    # "<|end|>" by the file's key and by its text, once.
    assert model["eos_token_id"] == 257
    assert found["generation_config.json"]["eos_token_id"] == [257]
    assert found["special_tokens_map.json"] == {"eos_token": "<|end|>"}


def test_the_fingerprint_follows_file_and_precision(tmp_path):
    seen = set()
    for seed, precision in ((0, "keep"), (0, "fp32"), (1, "keep"), (0, "keep")):
        write_tiny_gguf(tmp_path / "x.gguf", seed=seed)
        out = import_gguf(tmp_path / "x.gguf", tmp_path / "out", precision=precision)
        seen.add(json.loads((out / "tokenmill.json").read_text())["fingerprint"])
    assert len(seen) == 3


def test_the_same_file_gives_the_same_bytes(tmp_path):
    write_tiny_gguf(tmp_path / "x.gguf", quant="Q4_1")
    first, second = (import_gguf(tmp_path / "x.gguf", tmp_path / name) for name in "ab")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
