import json
from dataclasses import replace

from support.tiny_genai import genai_config, write_genai
from tokenmill.package.describe import describe, to_text
from tokenmill.package.load import load_package


def described(directory, **options):
    return describe(load_package(write_genai(directory, **options)))


def test_a_description_is_json_and_says_everything_that_the_document_lists(tmp_path):
    description = described(tmp_path)
    assert json.loads(json.dumps(description)) == description
    assert list(description) == [
        "format",
        "root",
        "form",
        "fingerprint",
        "precision",
        "context_length",
        "vocab_size",
        "hidden_size",
        "components",
        "state",
        "text",
        "defaults",
        "provider_options",
        "provenance",
        "ignored",
    ]


def test_ports_are_described_with_role_and_reason(tmp_path):
    ports = described(tmp_path)["components"]["decoder"]["ports"]
    assert ports[0] == {
        "name": "input_ids",
        "direction": "input",
        "dtype": "int64",
        "shape": ["batch_size", "sequence_length"],
        "role": "input_ids",
        "layer": None,
        "why": "genai_config.json model.decoder.inputs.input_ids",
    }


def test_state_and_text_are_described(tmp_path):
    description = described(tmp_path, tokenizer_config={"chat_template": "{{ messages }}"})
    assert description["state"]["bytes_per_token"] == 512
    assert description["state"]["layers"][1] == {
        "layer": 1,
        "kind": "attention",
        "num_kv_heads": 2,
        "head_dim": 16,
        "dtype": "float32",
        "sliding_window": None,
    }
    assert description["text"]["chat_template_source"] == "tokenizer_config.json chat_template"
    assert description["text"]["eos_token_ids"] == [2]
    assert description["defaults"]["temperature"] == 0.0


def test_the_text_names_what_a_user_looks_for(tmp_path):
    config = genai_config()
    config["model"]["colour"] = "blue"
    package = load_package(write_genai(tmp_path, config=config))
    text = to_text(describe(replace(package, provenance={"file": "x.gguf"})))
    for words in (
        "onnxruntime-genai",
        "float32",
        "256 tokens, vocabulary 96",
        "2 layers of attention, shared_buffer, 512 bytes per token",
        "2; BOS 1 not added",
        "temperature 0.0",
        "file: x.gguf",
        "com.microsoft.GroupQueryAttention x 2",
        "past_key_values.0.key ... (2 layers): float32",
        "is logits (genai_config.json model.decoder.outputs.logits)",
        'ignored: genai_config.json model.colour = "blue" (not known to this version)',
        package.fingerprint,
    ):
        assert words in text


def test_a_package_that_says_little_is_described_too(tmp_path):
    config = genai_config()
    del config["model"]["eos_token_id"]
    text = to_text(described(tmp_path, config=config, tokenizer=False))
    assert "tokenizer    none" in text
    assert "ends at      no token" in text
