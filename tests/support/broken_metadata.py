"""Packages whose inference_metadata is at fault, its ports in `model.io`."""

from __future__ import annotations

from support.breaking import (
    Broken,
    append,
    copy,
    field,
    link_to_itself,
    remove,
    several,
    without,
    write,
)

STANDARD = "llama/mobius-standard"
STATIC = "llama/mobius-static"
Y = "inference_metadata.yaml"

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

METADATA = [
    Broken(
        "syntax",
        STANDARD,
        append(Y, "x: [1, 2\n"),
        "inference_metadata.yaml is not valid: line 124, column 1: did not find expected ',' o",
    ),
    Broken("tab", STANDARD, append(Y, "x:\n\ty: 1\n"), "inference_metadata.yaml is not valid"),
    Broken(
        "duplicate",
        STANDARD,
        append(Y, "model: {}\n"),
        "inference_metadata.yaml: model: line 123: the field is there twice",
    ),
    Broken(
        "bomb",
        STANDARD,
        append(Y, BOMB),
        "inference_metadata.yaml: f[2]: line 128: with its aliases it holds more than 500000 v",
    ),
    Broken(
        "cyclic anchor",
        STANDARD,
        append(Y, "x: &a [*a]\n"),
        "inference_metadata.yaml: x[0]: line 123: the alias 'a' stands for nothing that is com",
    ),
    Broken(
        "tag",
        STANDARD,
        append(Y, "x: !!python/object/apply:os.system [id]\n"),
        "inference_metadata.yaml: x: line 123: the tag",
    ),
    Broken(
        "empty", STANDARD, write(Y, ""), "inference_metadata.yaml: it holds nothing, not an object"
    ),
    Broken("binary", STANDARD, write(Y, b"\x00\x01"), "inference_metadata.yaml is not valid"),
    Broken(
        "surrogate", STANDARD, append(Y, 'x: "\\ud800"\n'), "inference_metadata.yaml is not valid"
    ),
    Broken(
        "model list",
        STANDARD,
        field(Y, "model", ["llama"]),
        'inference_metadata.yaml: model: ["llama"] is not an object',
    ),
    Broken(
        "two",
        STANDARD,
        copy(Y, "inference_metadata.json"),
        "has inference_metadata.yaml and inference_metadata.json: two descriptions of one packag",
    ),
    Broken(
        "version",
        STANDARD,
        field(Y, "schema_version", "v9"),
        "inference_metadata.yaml: schema_version",
    ),
    Broken(
        "capability unknown",
        STANDARD,
        field(Y, "required_capabilities", ["kv_cache", "teleport"]),
        "inference_metadata.yaml: required_capabilities[1]: there is no capability 'teleport'",
    ),
    Broken(
        "capability lacking",
        STANDARD,
        field(Y, "required_capabilities", ["parameter_adapters"]),
        "inference_metadata.yaml: required_capabilities asks for parameter_adapters",
    ),
    Broken(
        "core field",
        STANDARD,
        field(Y, "colour", "red"),
        "inference_metadata.yaml: colour: there is no such field; there are adapters, generation,",
    ),
    Broken(
        "io field",
        STANDARD,
        field(Y, "model.io.kv_colour", "red"),
        "inference_metadata.yaml: model.io.kv_colour: there is no such field; there are aliasing,",
    ),
    Broken(
        "token_input",
        STANDARD,
        field(Y, "model.io.token_input", "tokens"),
        "inference_metadata.yaml: model.io.token_input",
    ),
    Broken(
        "token_input is mask",
        STANDARD,
        field(Y, "model.io.token_input", "attention_mask"),
        "inference_metadata.yaml model.io.attention_mask_input makes 'attention_mask' attentio",
    ),
    Broken(
        "mask",
        STANDARD,
        field(Y, "model.io.attention_mask_input", "mask"),
        "inference_metadata.yaml: model.io.attention_mask_input",
    ),
    Broken(
        "positions",
        STANDARD,
        field(Y, "model.io.position_ids_input", "places"),
        "inference_metadata.yaml: model.io.position_ids_input",
    ),
    Broken(
        "logits",
        STANDARD,
        field(Y, "model.io.logits_output", "scores"),
        "inference_metadata.yaml: model.io.logits_output",
    ),
    Broken(
        "logits is present",
        STANDARD,
        field(Y, "model.io.logits_output", "present.0.key"),
        "inference_metadata.yaml model.io.kv_outputs makes 'present.0.key' present_key of layer 0",
    ),
    Broken(
        "kv input",
        STANDARD,
        field(Y, "model.io.kv_inputs.2", "past.1"),
        "inference_metadata.yaml: model.io.kv_inputs[2]",
    ),
    Broken(
        "kv output",
        STANDARD,
        field(Y, "model.io.kv_outputs.3", "now.1"),
        "inference_metadata.yaml: model.io.kv_outputs[3]",
    ),
    Broken(
        "kv fewer",
        STANDARD,
        without(Y, "model.io.kv_outputs.3"),
        "inference_metadata.yaml: model.io.kv_outputs: it has 3 ports where kv_inputs has 4",
    ),
    Broken(
        "kv layer missing",
        STANDARD,
        several(
            *(without(Y, f"model.io.kv_{way}.{n}") for way in ("inputs", "outputs") for n in (3, 2))
        ),
        "the input 'past_key_values.1.key' of model.onnx has no role",
    ),
    Broken(
        "kv twice",
        STANDARD,
        field(Y, "model.io.kv_inputs.3", "past_key_values.0.key"),
        "inference_metadata.yaml: model.io.kv_inputs[3]: 'past_key_values.0.key' is there twice",
    ),
    Broken(
        "kv crossed",
        STANDARD,
        several(
            field(Y, "model.io.kv_outputs.0", "present.1.key"),
            field(Y, "model.io.kv_outputs.2", "present.0.key"),
        ),
        "inference_metadata.yaml model.io.kv_outputs says that 'present.1.key' continues 'past",
    ),
    Broken(
        "write indices",
        STATIC,
        field(Y, "model.io.static_cache.write_indices_input", "cursor"),
        "inference_metadata.yaml: model.io.static_cache.write_indices_input",
    ),
    Broken(
        "lengths",
        STATIC,
        field(Y, "model.io.static_cache.kv_sequence_length_input", "lengths"),
        "inference_metadata.yaml: model.io.static_cache.kv_sequence_length_input",
    ),
    Broken(
        "write indices are lengths",
        STATIC,
        several(
            field(Y, "model.io.static_cache.kv_sequence_length_input", "write_indices"),
            field(Y, "model.io.static_cache.write_indices_input", "nonpad_kv_seqlen"),
        ),
        "inference_metadata.yaml model.io.static_cache.write_indices_input makes 'nonpad_kv_se",
    ),
    Broken(
        "static key out",
        STATIC,
        field(Y, "model.io.static_cache.key_cache_outputs.1", "k1"),
        "inference_metadata.yaml: model.io.static_cache.key_cache_outputs[1]",
    ),
    Broken(
        "static lists",
        STATIC,
        without(Y, "model.io.static_cache.value_cache_inputs.1"),
        "inference_metadata.yaml: model.io.static_cache.value_cache_inputs",
    ),
    Broken(
        "static and pairs",
        STATIC,
        field(Y, "model.io.kv_inputs", ["key_cache.0"]),
        "inference_metadata.yaml: model.io.static_cache",
    ),
    Broken(
        "kv heads",
        STANDARD,
        field(Y, "model.attention.num_kv_heads", 4),
        "inference_metadata.yaml model.attention.num_kv_heads says that num_kv_heads is 4",
    ),
    Broken(
        "head_dim",
        STANDARD,
        field(Y, "model.attention.head_dim", 32),
        "inference_metadata.yaml model.attention.head_dim says that head_dim is 32",
    ),
    Broken(
        "heads",
        STANDARD,
        field(Y, "model.attention.num_attention_heads", 5),
        "inference_metadata.yaml: model.attention.num_kv_heads",
    ),
    Broken(
        "attention type",
        STANDARD,
        field(Y, "model.attention.type", "hopfield"),
        'inference_metadata.yaml: model.attention.type is "hopfield"',
    ),
    Broken(
        "static head_dim",
        STATIC,
        field(Y, "model.attention.head_dim", 8),
        "inference_metadata.yaml model.attention.head_dim says that head_dim is 8",
    ),
    Broken(
        "port shape",
        STANDARD,
        field(Y, "model.io.inputs.3.shape.1", 8),
        "inference_metadata.yaml: model.io.inputs[3].shape[1]",
    ),
    Broken(
        "port dtype",
        STANDARD,
        field(Y, "model.io.outputs.0.dtype", "fp16"),
        "inference_metadata.yaml: model.io.outputs[0].dtype",
    ),
    Broken(
        "context",
        STANDARD,
        field(Y, "model.max_sequence_length", 0),
        "inference_metadata.yaml: model.max_sequence_length: 0 is not from 1 to 2147483647",
    ),
    Broken(
        "no context",
        STANDARD,
        without(Y, "model.max_sequence_length"),
        "inference_metadata.yaml: model.max_sequence_length: it is missing, and nothing else t",
    ),
    Broken(
        "vocab",
        STANDARD,
        field(Y, "model.vocab_size", 300),
        "inference_metadata.yaml: model.vocab_size: it is 300, and model.onnx has 288 logits",
    ),
    Broken(
        "temperature text",
        STANDARD,
        field(Y, "generation", {"defaults": {"temperature": "hot"}}),
        'inference_metadata.yaml: generation.defaults.temperature: "hot" is not a number',
    ),
    Broken(
        "beams",
        STANDARD,
        field(Y, "generation", {"defaults": {"num_beams": 3}}),
        "inference_metadata.yaml: generation.defaults.num_beams is 3",
    ),
    Broken(
        "tokenizer up",
        STANDARD,
        field(
            Y,
            "package",
            {
                "tokenizer": {
                    "algorithm": "bpe",
                    "vocab_size": 288,
                    "artifacts": [{"location": "../tokenizer.json"}],
                }
            },
        ),
        "inference_metadata.yaml: package.tokenizer.artifacts[0].location",
    ),
    Broken(
        "special token",
        STANDARD,
        field(
            Y,
            "package",
            {
                "tokenizer": {
                    "algorithm": "bpe",
                    "vocab_size": 288,
                    "special_tokens": {"eos": {"id": 5000, "content": "x"}},
                }
            },
        ),
        "inference_metadata.yaml: package.tokenizer.special_tokens.eos.id",
    ),
    Broken(
        "pipeline models",
        STANDARD,
        field(Y, "pipeline", {"models": {"decoder": {"filename": "model.onnx"}}}),
        "inference_metadata.yaml: pipeline.models asks for a pipeline of several models",
    ),
    Broken(
        "speculative",
        STANDARD,
        field(Y, "speculative", {"proposer": "x", "target": "y"}),
        'inference_metadata.yaml: speculative is {"proposer": "x", "target": "y"}',
    ),
    Broken(
        "hints",
        STANDARD,
        write("execution_hints.json", "{"),
        "execution_hints.json is not valid JSON",
    ),
    Broken(
        "no graph",
        STANDARD,
        remove("model.onnx"),
        "model.onnx is not there: inference_metadata.yaml names no graph, and there is no",
    ),
    Broken(
        "tokenizer link loop",
        STANDARD,
        link_to_itself("tokenizer.json"),
        "cannot read tokenizer.json: Too many levels of symbolic links",
        False,
    ),
]
