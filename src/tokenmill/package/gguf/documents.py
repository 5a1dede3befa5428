"""The JSON documents beside the graph: what onnxruntime-genai and transformers read, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.package.gguf.geometry import Geometry
from tokenmill.package.gguf.metadata import Metadata
from tokenmill.package.gguf.tokenizer import BuiltTokenizer
from tokenmill.package.gguf.vocabulary import Vocabulary

_TEMPLATE = "tokenizer.chat_template"
# `general.sampling.*` to the name that generation defaults have elsewhere.
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# onnxruntime-genai refuses a document with a key that it does not know.
_GENAI_SEARCH = ("temperature", "top_k", "top_p", "repetition_penalty")
_INTEGERS = ("top_k",)


def sampling_defaults(metadata: Metadata) -> dict[str, float | int]:
    """Returns the generation defaults that the file carries, by their usual names."""
    found: dict[str, float | int] = {}
    for key, name in _SAMPLING.items():
        value = metadata.get_float(f"general.sampling.{key}")
        if value is not None:
            # The file's numbers are single precision: 0.8 is stored as 0.800000011920929.
            found[name] = int(value) if name in _INTEGERS else float(f"{value:.6g}")
    return found


def chat_templates(metadata: Metadata) -> tuple[str | None, dict[str, str]]:
    """Returns the default chat template and the further ones by name."""
    default = metadata.get_text(_TEMPLATE)
    prefix = f"{_TEMPLATE}."
    named = {
        name: text
        for name, text in metadata.with_prefix(prefix).items()
        if isinstance(text, str) and name != "default"
    }
    return default if default is not None else metadata.get_text(f"{prefix}default"), named


def genai_config(
    family: str,
    geometry: Geometry,
    vocab_size: int,
    vocabulary: Vocabulary,
    sampling: Mapping[str, float | int],
) -> dict[str, Any]:
    """Returns `genai_config.json`.

    Args:
        family: what onnxruntime-genai calls the model's type.
        geometry, vocab_size: of the graph.
        vocabulary: for the ids with a role.
        sampling: see `sampling_defaults`; greedy where it is empty.
    """
    roles = vocabulary.roles
    ends = list(vocabulary.end_ids)
    fallback = ends[0] if ends else 0
    sampled = bool(sampling) and sampling.get("temperature", 1) != 0
    search: dict[str, Any] = {
        "diversity_penalty": 0.0,
        "do_sample": sampled,
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": geometry.context_length,
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50 if sampled else 1,
        "top_p": 1.0,
    }
    search.update({name: sampling[name] for name in _GENAI_SEARCH if name in sampling})
    return {
        "model": {
            "bos_token_id": roles.get("bos_token", fallback),
            "context_length": geometry.context_length,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": geometry.head_dim,
                "hidden_size": geometry.hidden_size,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": geometry.heads,
                "num_hidden_layers": geometry.layers,
                "num_key_value_heads": geometry.kv_heads,
            },
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": roles.get("pad_token", fallback),
            "type": family,
            "vocab_size": vocab_size,
        },
        "search": search,
    }


def generation_config(
    vocabulary: Vocabulary, sampling: Mapping[str, float | int]
) -> dict[str, Any]:
    """Returns `generation_config.json`."""
    roles = vocabulary.roles
    config: dict[str, Any] = {"eos_token_id": list(vocabulary.end_ids), **sampling}
    if sampling:
        config["do_sample"] = sampling.get("temperature", 1) != 0
    for name in ("bos_token", "pad_token"):
        if name in roles:
            config[f"{name}_id"] = roles[name]
    return config


def special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    """Returns `special_tokens_map.json`: role to text."""
    return {role: vocabulary.tokens[index] for role, index in vocabulary.roles.items()}


def tokenizer_config(
    vocabulary: Vocabulary,
    tokenizer: BuiltTokenizer,
    context_length: int,
    template: str | None,
    named_templates: Mapping[str, str],
) -> dict[str, Any]:
    """Returns `tokenizer_config.json`."""
    config: dict[str, Any] = {
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in vocabulary.added_tokens()
        },
        **special_tokens(vocabulary),
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "tokenizer_class": tokenizer.class_name,
    }
    if named_templates:
        every = (
            dict(named_templates) if template is None else {"default": template, **named_templates}
        )
        config["chat_template"] = [{"name": name, "template": text} for name, text in every.items()]
    elif template is not None:
        config["chat_template"] = template
    return config
