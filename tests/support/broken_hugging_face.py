"""Hugging Face exports whose configuration is at fault."""

from __future__ import annotations

from support.breaking import (
    Broken,
    cut,
    field,
    remove,
    several,
    without,
    write,
)
from tokenmill.package.load_options import LoadOptions

OPTIMUM = "llama/optimum"
WEB = "qwen2/transformers-js"
C = "config.json"

HUGGING_FACE = [
    Broken(
        "cut off",
        OPTIMUM,
        cut(C, 0.9),
        "config.json is not valid JSON: Expecting property name enclosed in double quotes: line 31",
    ),
    Broken(
        "layers",
        OPTIMUM,
        field(C, "num_hidden_layers", 4),
        "config.json num_hidden_layers is 4: model.onnx has the state of 2 layers",
    ),
    Broken(
        "layers 10**9",
        OPTIMUM,
        field(C, "num_hidden_layers", 10**9),
        "config.json num_hidden_layers is 1000000000: model.onnx has the state of 2 layers",
    ),
    Broken(
        "layer types",
        OPTIMUM,
        field(C, "layer_types", ["full_attention"]),
        "config.json: layer_types: it has 1 layers, num_hidden_layers says 2",
    ),
    Broken(
        "vocab",
        OPTIMUM,
        field(C, "vocab_size", 512),
        "config.json vocab_size is 512: the port 'logits' of model.onnx has 288 logits",
    ),
    Broken(
        "kv heads",
        OPTIMUM,
        field(C, "num_key_value_heads", 4),
        "config.json num_key_value_heads says that num_kv_heads is 4",
    ),
    Broken(
        "head_dim",
        OPTIMUM,
        field(C, "head_dim", 64),
        "config.json head_dim says that head_dim is 64",
    ),
    Broken(
        "context 0",
        OPTIMUM,
        field(C, "max_position_embeddings", 0),
        "config.json: max_position_embeddings: 0 is not from 1 to 2147483647",
    ),
    Broken(
        "encoder-decoder",
        OPTIMUM,
        field(C, "is_encoder_decoder", True),
        "config.json is_encoder_decoder is true: this version runs single decoders",
    ),
    Broken(
        "text_config no object",
        OPTIMUM,
        several(without(C, "num_hidden_layers"), field(C, "text_config", "llama")),
        'config.json: text_config: "llama" is not an object',
    ),
    Broken(
        "text_config missing layers",
        OPTIMUM,
        several(without(C, "num_hidden_layers"), field(C, "text_config", {"num_hidden_layers": 9})),
        "config.json text_config.num_hidden_layers is 9: model.onnx has the state of 2 layers",
    ),
    Broken(
        "generation top_p",
        OPTIMUM,
        field("generation_config.json", "top_p", 7),
        "generation_config.json: top_p: 7 is not from 0 to 1",
    ),
    Broken(
        "generation suppress",
        OPTIMUM,
        field("generation_config.json", "suppress_tokens", [5]),
        "generation_config.json suppress_tokens is [5]: not executed by this version",
    ),
    Broken(
        "generation list",
        OPTIMUM,
        write("generation_config.json", "[]"),
        "generation_config.json: it holds [], not an object",
    ),
    Broken(
        "eos float",
        OPTIMUM,
        field("generation_config.json", "eos_token_id", 2.5),
        "generation_config.json: eos_token_id: 2.5 is not a whole number",
    ),
    Broken(
        "special tokens",
        OPTIMUM,
        field("special_tokens_map.json", "eos_token", 5),
        "special_tokens_map.json: eos_token: it is neither a string nor an object with `content`",
    ),
    Broken(
        "variant",
        WEB,
        lambda root: None,
        "variant is 'bnb4': there are onnx/model.onnx, onnx/model_fp16.onnx,",
        False,
        LoadOptions(variant="bnb4"),
    ),
    Broken(
        "chosen variant is cut off",
        WEB,
        cut("onnx/model.onnx", 0.1),
        "onnx/model.onnx is damaged at byte 19: field 7 says 219914 bytes and 21971 are left",
    ),
    Broken(
        "no graph",
        OPTIMUM,
        remove("model.onnx"),
        "holds no model: none of these is there: manifest.json with components",
    ),
    Broken(
        "config is directory",
        OPTIMUM,
        several(remove(C), lambda root: (root / C).mkdir()),
        "cannot read config.json: Is a directory",
    ),
]
