"""Writes a real model's exports: what Optimum, mobius and onnxruntime-genai's builder make of it.

The weights come from a GGUF file, so that every export and Tokenmill's own import of that file are
the same model. Environments as in tests/fixtures/README.md, with `gguf` in the first:

    genai-mobius/bin/python bench/make_exports.py MODEL.gguf OUT --optimum optimum/bin/python

Llama architectures only. Each export is some 500 MB for a model of 135 million parameters.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))

from making.exporters import run_genai, run_mobius, run_optimum


def write_source(gguf: Path, target: Path) -> None:
    """Turns the GGUF file into a Hugging Face directory with float32 weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    config = loaded.config.to_dict()
    for field in ("quantization_config", "_name_or_path"):
        config.pop(field, None)
    # A model that was loaded quantised cannot be saved; one that takes over its weights can.
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.load_state_dict({name: value.float() for name, value in loaded.state_dict().items()})
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)
    _add_older_names(target)


def _add_older_names(directory: Path) -> None:
    """Writes what transformers 4 looks for where version 5 says it otherwise."""
    config_file, text_file = directory / "config.json", directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    config_file.write_text(json.dumps(config, indent=1))
    text = json.loads(text_file.read_text())
    text["tokenizer_class"] = "PreTrainedTokenizerFast"
    text_file.write_text(json.dumps(text, indent=1))


def exports(optimum: str) -> dict[str, Callable[[Path, Path], None]]:
    """The exports by name, each a function of the source and the directory to write."""

    def mobius(runtime: str, *options: str) -> Callable[[Path, Path], None]:
        return lambda source, target: run_mobius(runtime, source, target, *options)

    return {
        "optimum": partial(run_optimum, optimum, "plain"),
        "mobius-standard": mobius("onnx-genai", "--ep", "onnx-standard"),
        "mobius-static": mobius("onnx-genai", "--static-cache", "--max-seq-len", "2048"),
        "mobius-ort-genai": mobius("ort-genai", "--ep", "cpu"),
        "genai-fp32": partial(run_genai, "fp32"),
    }


def main() -> None:
    """Makes what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--optimum", required=True, help="Python of Optimum's environment")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = options.out / "source"
    if not source.exists():
        write_source(options.gguf, source)
    for name, export in exports(options.optimum).items():
        target = options.out / name
        if not target.exists():
            export(source, target)
        print(target, flush=True)


if __name__ == "__main__":
    main()
