"""A `ModelPackage` around a tiny decoder of `tiny_plain`, made by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx

from support.tiny_package import NO_TEXT
from support.tiny_plain import PlainSpec, make_plain
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
)


def make_plain_package(directory: Path, spec: PlainSpec) -> ModelPackage:
    """Writes a decoder into `directory` and returns the package around it."""
    file = directory / "model.onnx"
    onnx.save(make_plain(spec), file)
    return plain_package_of(file, spec)


def plain_package_of(file: Path, spec: PlainSpec) -> ModelPackage:
    """Returns the package around a decoder that was written before."""
    names = spec.names
    text = ("batch_size", "sequence_length")
    bindings = [_binding(names.input_ids, Role.INPUT_IDS, spec.ids_dtype, text)]
    if names.attention_mask is not None:
        shape = ("batch_size", "total_length")
        bindings.append(_binding(names.attention_mask, Role.ATTENTION_MASK, spec.ids_dtype, shape))
    if names.position_ids is not None and spec.positions != "none":
        bindings.append(_binding(names.position_ids, Role.POSITION_IDS, spec.ids_dtype, text))
    if spec.merged:
        bindings.append(_binding(names.use_cache_branch, Role.USE_CACHE_BRANCH, "bool", (1,)))
    layers = []
    for layer in range(spec.layers):
        heads = spec.kv_heads_of(layer)
        shape = ("batch_size", heads, "past_length", spec.head_dim)
        for role, name in (
            (Role.PAST_KEY, names.past_key),
            (Role.PAST_VALUE, names.past_value),
            (Role.PRESENT_KEY, names.present_key),
            (Role.PRESENT_VALUE, names.present_value),
        ):
            bindings.append(_binding(name.format(layer), role, spec.dtype, shape, layer))
        layers.append(AttentionState(layer, heads, spec.head_dim, spec.dtype))
    bindings.append(_binding(names.logits, Role.LOGITS, spec.dtype, (*text, spec.vocab)))
    return ModelPackage(
        root=file.parent,
        form=PackageForm.HUGGING_FACE,
        fingerprint=Fingerprint(hashlib.sha256(repr(spec).encode()).hexdigest()),
        components={"decoder": Component("decoder", file, tuple(bindings), {}, 0)},
        state=StateContract(StateLayout.PLAIN, tuple(layers)),
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
