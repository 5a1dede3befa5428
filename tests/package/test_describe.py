import json
from dataclasses import replace
from pathlib import Path

from support.tiny_genai import genai_config, write_genai
from support.tiny_plain import STATIC, write_plain
from tokenmill.package.describe import describe, to_text
from tokenmill.package.load import load_package
from tokenmill.package.model_package import Choice, Ignored, Permissions, Range


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
        "permissions",
        "choices",
        "ignored",
        "losses",
    ]


def fields_of(description):
    """The names of all fields, objects of objects with dots."""
    for name, value in description.items():
        yield name
        if name in ("state", "text", "defaults", "permissions"):
            yield from value


def test_every_field_is_documented(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "show.md").read_text()
    missing = [
        name
        for name in fields_of(described(tmp_path))
        if f"`{name}`" not in text and f"`{name}[]`" not in text
    ]
    assert missing == []


def test_permissions_choices_and_losses_are_described(tmp_path):
    package = replace(
        load_package(write_genai(tmp_path)),
        permissions=Permissions(
            prefix_cache=False,
            prefill_chunk=64,
            overrides={"top_k": Range(1, None), "temperature": Range(0, 2.5)},
        ),
        choices=(Choice("variant", "cpu-int4", "it is for the CPU", {"cuda": "no such device"}),),
        losses=(Ignored("a.json beams", "4", "not executed"),),
    )
    description = describe(package)
    assert description["permissions"] == {
        "prefix_cache": False,
        "continuous_batching": None,
        "prefill_chunk": 64,
        "overrides": {
            "top_k": {"minimum": 1, "maximum": None},
            "temperature": {"minimum": 0, "maximum": 2.5},
        },
    }
    assert description["choices"] == [
        {
            "what": "variant",
            "chosen": "cpu-int4",
            "why": "it is for the CPU",
            "others": {"cuda": "no such device"},
        }
    ]
    assert description["losses"] == [{"field": "a.json beams", "value": "4", "why": "not executed"}]
    text = to_text(description)
    for line in (
        "variant cpu-int4 taken (it is for the CPU)",
        "  not cuda: no such device",
        "permission: prefix_cache no",
        "permission: prefill_chunk 64",
        "permission: a request may set top_k from 1, temperature from 0 to 2.5",
        "lost: a.json beams = 4 (not executed)",
    ):
        assert line in text.splitlines()


def test_a_static_cache_is_described_with_its_capacity(tmp_path):
    description = describe(load_package(write_plain(tmp_path, STATIC)))
    assert description["state"]["capacity"] == 32
    assert "2 layers of attention, static_cache of 32 tokens" in to_text(description)


def test_a_graph_in_a_folder_is_named_with_it(tmp_path):
    description = describe(load_package(write_plain(tmp_path, file="onnx/model.onnx")))
    assert description["components"]["decoder"]["file"] == "onnx/model.onnx"


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
