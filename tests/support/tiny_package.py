"""A `ModelPackage` around a tiny random decoder, made by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

from support.tiny_onnx import TinySpec, save_decoder
from tokenmill.core.ids import Fingerprint
from tokenmill.package.model_package import (
    AttentionState,
    Component,
    GenerationDefaults,
    ModelPackage,
    PackageForm,
    Port,
    PortBinding,
    Role,
    StateContract,
    StateLayout,
    TextContract,
)

NO_TEXT = TextContract(
    tokenizer_file=None,
    chat_template=None,
    named_templates={},
    template_source="",
    special_tokens={},
    bos_token_id=None,
    add_bos=False,
    eos_token_ids=frozenset(),
    pad_token_id=None,
)


def make_package(directory: Path, spec: TinySpec | None = None) -> ModelPackage:
    """Writes a decoder into `directory` and returns the package around it."""
    spec = spec or TinySpec()
    file = save_decoder(spec, directory)
    return package_of(file, spec)


def package_of(file: Path, spec: TinySpec) -> ModelPackage:
    """Returns the package around a decoder that was written before."""
    batch: tuple[int | str, ...] = ("batch_size", "sequence_length")
    bindings = [_binding("input_ids", Role.INPUT_IDS, "int64", batch)]
    shape = ("batch_size", "total_length")
    bindings.append(_binding("attention_mask", Role.ATTENTION_MASK, "int64", shape))
    if spec.position_ids:
        bindings.append(_binding("position_ids", Role.POSITION_IDS, "int64", batch))
    for layer in range(spec.layers):
        for role, name in (
            (Role.PAST_KEY, f"past_key_values.{layer}.key"),
            (Role.PAST_VALUE, f"past_key_values.{layer}.value"),
            (Role.PRESENT_KEY, f"present.{layer}.key"),
            (Role.PRESENT_VALUE, f"present.{layer}.value"),
        ):
            kv = ("batch_size", spec.kv_heads, "length", spec.head_dim)
            bindings.append(_binding(name, role, "float32", kv, layer))
    logits = (*batch, spec.vocab)
    bindings.append(_binding("logits", Role.LOGITS, spec.logits_dtype, logits))
    decoder = Component("decoder", file, tuple(bindings), {}, 0)
    layers = tuple(
        AttentionState(layer, spec.kv_heads, spec.head_dim, "float32")
        for layer in range(spec.layers)
    )
    return ModelPackage(
        root=file.parent,
        form=PackageForm.GENAI,
        fingerprint=Fingerprint(hashlib.sha256(repr(spec).encode()).hexdigest()),
        components={"decoder": decoder},
        state=StateContract(StateLayout.SHARED_BUFFER, layers),
        text=NO_TEXT,
        defaults=GenerationDefaults(),
        context_length=spec.context,
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
    )


def _binding(
    name: str, role: Role, dtype: str, shape: tuple[int | str, ...], layer: int | None = None
) -> PortBinding:
    is_input = role not in (Role.LOGITS, Role.PRESENT_KEY, Role.PRESENT_VALUE)
    return PortBinding(Port(name, dtype, shape, is_input), role, layer, "made by hand")
