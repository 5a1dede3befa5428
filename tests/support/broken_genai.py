"""Directories whose genai_config.json, or a text file beside it, is at fault."""

from __future__ import annotations

from support.breaking import (
    Broken,
    cut,
    field,
    several,
    without,
    write,
)

GENAI = "llama/genai-fp32"
G = "genai_config.json"

GENAI_CONFIGS = [
    Broken("cut off", GENAI, cut(G, 0.5), "genai_config.json is not valid JSON"),
    Broken("a list", GENAI, write(G, "[]"), "genai_config.json: it holds [], not an object"),
    Broken(
        "not UTF-8",
        GENAI,
        write(G, b'{"model": "\xff"}'),
        "genai_config.json is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 11:",
    ),
    Broken(
        "deeply nested",
        GENAI,
        write(G, '{"model": ' + "[" * 100_000),
        "genai_config.json is not valid JSON: maximum recursion depth exceeded while decoding ",
    ),
    Broken(
        "model is a list",
        GENAI,
        field(G, "model", []),
        "genai_config.json: model: [] is not an object",
    ),
    Broken(
        "decoder is text",
        GENAI,
        field(G, "model.decoder", "model.onnx"),
        'genai_config.json: model.decoder: "model.onnx" is not an object',
    ),
    Broken(
        "inputs is a list",
        GENAI,
        field(G, "model.decoder.inputs", ["input_ids"]),
        'genai_config.json: model.decoder.inputs: ["input_ids"] is not an object',
    ),
    Broken(
        "no filename",
        GENAI,
        without(G, "model.decoder.filename"),
        "genai_config.json: model.decoder.filename: it is missing",
    ),
    Broken(
        "filename not there",
        GENAI,
        field(G, "model.decoder.filename", "decoder.onnx"),
        "cannot read decoder.onnx: No such file or directory",
    ),
    Broken(
        "filename leads up",
        GENAI,
        field(G, "model.decoder.filename", "../p/model.onnx"),
        "genai_config.json: model.decoder.filename: '../p/model.onnx' leads out of the package",
    ),
    Broken(
        "filename absolute",
        GENAI,
        field(G, "model.decoder.filename", "/etc/passwd"),
        "genai_config.json: model.decoder.filename: '/etc/passwd' leads out of the package",
    ),
    Broken(
        "filename NUL",
        GENAI,
        field(G, "model.decoder.filename", "model\0.onnx"),
        "genai_config.json: model.decoder.filename: 'model\\x00.onnx' is not a file's name",
    ),
    Broken(
        "filename surrogate",
        GENAI,
        field(G, "model.decoder.filename", "model\ud800.onnx"),
        "genai_config.json is not valid: a text holds '\\ud800', half of a surrogate pair",
    ),
    Broken(
        "past names",
        GENAI,
        field(G, "model.decoder.inputs.past_key_names", "past.%d.k"),
        "genai_config.json: model.decoder.inputs.past_key_names",
    ),
    Broken(
        "past names without %d",
        GENAI,
        field(G, "model.decoder.inputs.past_value_names", "past_key_values.0.value"),
        "genai_config.json: model.decoder.inputs.past_value_names",
    ),
    Broken(
        "present names",
        GENAI,
        field(G, "model.decoder.outputs.present_key_names", "now.%d.k"),
        "genai_config.json: model.decoder.outputs.present_key_names",
    ),
    Broken(
        "logits",
        GENAI,
        field(G, "model.decoder.outputs.logits", "scores"),
        "genai_config.json model.decoder.outputs.logits names 'scores': model.onnx has no output ",
    ),
    Broken(
        "ids",
        GENAI,
        field(G, "model.decoder.inputs.input_ids", "tokens"),
        "genai_config.json model.decoder.inputs.input_ids names 'tokens': model.onnx has no input ",
    ),
    Broken(
        "swapped keys and values",
        GENAI,
        several(
            field(G, "model.decoder.inputs.past_key_names", "past_key_values.%d.value"),
            field(G, "model.decoder.inputs.past_value_names", "past_key_values.%d.key"),
        ),
        "genai_config.json model.decoder.inputs.past_key_names says that 'past_key_values.0.valu",
        False,
    ),
    Broken(
        "present swapped",
        GENAI,
        several(
            field(G, "model.decoder.outputs.present_key_names", "present.%d.value"),
            field(G, "model.decoder.outputs.present_value_names", "present.%d.key"),
        ),
        "genai_config.json model.decoder.outputs.present_key_names says that 'present.0.value' co",
        False,
    ),
    Broken(
        "mask",
        GENAI,
        field(G, "model.decoder.inputs.attention_mask", "mask"),
        "genai_config.json model.decoder.inputs.attention_mask names 'mask'",
    ),
    Broken(
        "mask is ids",
        GENAI,
        field(G, "model.decoder.inputs.attention_mask", "input_ids"),
        "genai_config.json model.decoder.inputs.attention_mask makes 'input_ids' attention_mask",
    ),
    Broken(
        "embeds",
        GENAI,
        field(G, "model.decoder.inputs.inputs_embeds", "input_ids"),
        "genai_config.json model.decoder.inputs.inputs_embeds makes 'input_ids' inputs_embeds",
    ),
    Broken(
        "head_size wrong",
        GENAI,
        field(G, "model.decoder.head_size", 8),
        "genai_config.json model.decoder.head_size says that head_dim is 8: the state of ",
        False,
    ),
    Broken(
        "kv heads wrong",
        GENAI,
        field(G, "model.decoder.num_key_value_heads", 4),
        "genai_config.json model.decoder.num_key_value_heads says that num_kv_heads is 4: the ",
    ),
    Broken(
        "attention heads wrong",
        GENAI,
        field(G, "model.decoder.num_attention_heads", 5),
        "genai_config.json: model.decoder.num_attention_heads",
        False,
    ),
    Broken(
        "layers more",
        GENAI,
        field(G, "model.decoder.num_hidden_layers", 3),
        "genai_config.json: model.decoder.inputs.past_key_names",
    ),
    Broken(
        "layers fewer",
        GENAI,
        field(G, "model.decoder.num_hidden_layers", 1),
        "the input 'past_key_values.1.key' of model.onnx has no role",
    ),
    Broken(
        "layers 10**9",
        GENAI,
        field(G, "model.decoder.num_hidden_layers", 10**9),
        "genai_config.json: model.decoder.inputs.past_key_names",
    ),
    Broken(
        "layers 10**30",
        GENAI,
        field(G, "model.decoder.num_hidden_layers", 10**30),
        "genai_config.json: model.decoder.num_hidden_layers",
    ),
    Broken(
        "vocab",
        GENAI,
        field(G, "model.vocab_size", 300),
        "genai_config.json model.vocab_size is 300: the port 'logits' of model.onnx has 288 logits",
    ),
    Broken(
        "context 0",
        GENAI,
        field(G, "model.context_length", 0),
        "genai_config.json: model.context_length: 0 is not from 1 to 2147483647",
    ),
    Broken(
        "bos negative",
        GENAI,
        field(G, "model.bos_token_id", -1),
        "genai_config.json: model.bos_token_id: -1 is not from 0 to 2147483647",
    ),
    Broken(
        "beams",
        GENAI,
        field(G, "search.num_beams", 4),
        "genai_config.json search.num_beams is 4: this version does not search with beams",
    ),
    Broken(
        "temperature",
        GENAI,
        several(field(G, "search.do_sample", True), field(G, "search.temperature", -1)),
        "genai_config.json: search.temperature: -1 is not from 0 to 100",
    ),
    Broken(
        "encoder",
        GENAI,
        field(G, "model.encoder", {"filename": "encoder.onnx"}),
        "genai_config.json model.encoder asks for a pipeline of several models",
    ),
    Broken(
        "pipeline",
        GENAI,
        field(G, "model.decoder.pipeline", [{"a": {}}]),
        "genai_config.json model.decoder.pipeline splits the decoder into several graphs",
    ),
    Broken(
        "unknown provider",
        GENAI,
        field(G, "model.decoder.session_options.provider_options", [{"Foo": {}}]),
        "the execution provider 'foo' is not available: this ONNX Runtime has azure, cpu",
        True,
    ),
    Broken(
        "window",
        GENAI,
        field(G, "model.decoder.sliding_window", {"window_size": 4, "slide_key_value_cache": True}),
        "genai_config.json model.decoder.sliding_window.slide_key_value_cache is true",
    ),
    Broken(
        "tokenizer cut",
        GENAI,
        cut("tokenizer.json", 0.5),
        "tokenizer.json is not a tokenizer that can be read",
        True,
    ),
    Broken(
        "tokenizer is a list",
        GENAI,
        write("tokenizer.json", "[1]"),
        "tokenizer.json is not valid JSON: '{' expected at character 0",
    ),
    Broken(
        "tokenizer config",
        GENAI,
        write("tokenizer_config.json", "{,}"),
        "tokenizer_config.json is not valid JSON",
    ),
    Broken(
        "add_bos",
        GENAI,
        several(
            without(G, "model.bos_token_id"),
            field("tokenizer_config.json", "add_bos_token", True),
            field("tokenizer_config.json", "bos_token", "<nope>"),
        ),
        "tokenizer_config.json: add_bos_token: it is true, and no file says which token that is",
    ),
    Broken(
        "template not UTF-8",
        GENAI,
        write("chat_template.jinja", b"\xff\xfe"),
        "chat_template.jinja is not UTF-8",
    ),
    Broken(
        "sidecar version",
        GENAI,
        write("tokenmill.json", '{"format": 99}'),
        "tokenmill.json: format: 99 is not a format that this version reads",
    ),
]
