"""A tiny onnxruntime-genai directory: a random decoder, its configuration, a byte tokenizer."""

import json

from support.tiny_onnx import TinySpec, save_decoder
from support.tiny_tokenizers import byte_level

SPEC = TinySpec()


def genai_config(spec=SPEC):
    """The configuration as the exporter writes it."""
    return {
        "model": {
            "bos_token_id": 1,
            "context_length": spec.context,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": "model.onnx",
                "head_size": spec.head_dim,
                "hidden_size": spec.hidden,
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
                "num_attention_heads": spec.heads,
                "num_hidden_layers": spec.layers,
                "num_key_value_heads": spec.kv_heads,
            },
            "eos_token_id": 2,
            "pad_token_id": 0,
            "type": "llama",
            "vocab_size": spec.vocab,
        },
        "search": {"do_sample": False, "num_beams": 1, "past_present_share_buffer": True},
    }


def tokenizer_json(*, prefix=None):
    """A document as the `tokenizers` library writes it, in its order; the vocabulary stands last.

    Args:
        prefix: a token that the post-processor puts before a text.
    """
    processor = None
    if prefix is not None:
        token_id = {"<pad>": 0, "<s>": 1, "</s>": 2, "<|end|>": 3}[prefix]
        processor = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": prefix, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {prefix: {"id": prefix, "ids": [token_id], "tokens": [prefix]}},
        }
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": text, "special": True}
            for index, text in enumerate(("<pad>", "<s>", "</s>", "<|end|>"))
        ],
        "normalizer": None,
        "post_processor": processor,
        "model": {"type": "BPE", "vocab": {"a": 4, '"post_processor": {': 5}, "merges": []},
    }


def write_genai(directory, *, spec=SPEC, config=None, tokenizer=None, **documents):
    """Writes the directory and returns it.

    Args:
        config: instead of `genai_config(spec)`.
        tokenizer: instead of `tokenizer_json()`; False writes none.
        documents: further JSON files by stem, e.g. `tokenizer_config={...}`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_decoder(spec, directory)
    documents["genai_config"] = genai_config(spec) if config is None else config
    if tokenizer is not False:
        documents["tokenizer"] = tokenizer or tokenizer_json()
    for stem, document in documents.items():
        (directory / f"{stem}.json").write_text(json.dumps(document))
    return directory


def write_speaking(directory, *, chat_template=None):
    """Writes a directory that loads whole, tokenizer included: a token for each byte."""
    documents = {}
    if chat_template is not None:
        documents["tokenizer_config"] = {"chat_template": chat_template}
    tokenizer = json.loads(byte_level().to_str())
    return write_genai(directory, spec=TinySpec(vocab=270), tokenizer=tokenizer, **documents)
