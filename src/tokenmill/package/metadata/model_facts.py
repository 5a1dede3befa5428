"""The section `model`, but for its ports: geometry, limits and permissions."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, one_of, required_text

_MODEL = (
    "attention",
    "architecture",
    "io",
    "max_sequence_length",
    "mixture_of_experts",
    "runtime_configurable",
    "sharding",
    "vocab_size",
)
_ATTENTION = (
    "type",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "sliding_window",
    "sink_tokens",
    "key_sequence_lengths",
    "fallback_behavior",
)
_ATTENTION_TYPES = frozenset(
    {
        "multi_head",
        "multi_head_attention",
        "grouped_query",
        "group_query_attention",
        "grouped_query_attention",
        "gqa",
        "multi_latent",
        "multi_latent_attention",
        "mla",
    }
)
_TELLS_NOTHING = "it changes no output; the graph tells it"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the section `model` says of the whole model.

    Attributes:
        section: `model`.
        attention: `model.attention`.
        num_kv_heads, head_dim, sliding_window, context_length, vocab_size: None where it says
            nothing.
        prefix_cache, continuous_batching, prefill_chunk: as in `Permissions`.
    """

    section: Section
    attention: Section
    num_kv_heads: int | None
    head_dim: int | None
    sliding_window: int | None
    context_length: int | None
    vocab_size: int | None
    prefix_cache: bool | None
    continuous_batching: bool | None
    prefill_chunk: int | None


def read_model_facts(reading: Reading, document: Section) -> ModelFacts:
    """Reads the section `model` without its ports.

    Raises:
        InvalidPackage: a field that is not known, or has an impossible value.
        UnsupportedModel: attention of an unknown type without a fallback, or with sinks.
    """
    model = document.section("model")
    reading.only(model, _MODEL)
    attention = model.section("attention")
    reading.only(attention, _ATTENTION)
    if attention.names():
        _check_type(reading, attention)
    heads = attention.integer("num_attention_heads", low=1)
    kv_heads = attention.integer("num_kv_heads", low=1)
    if heads is not None and kv_heads is not None and heads % kv_heads:
        raise attention.wrong(
            "num_kv_heads", f"{kv_heads} does not divide num_attention_heads, {heads}"
        )
    if attention.integer("sink_tokens"):
        why = "the graph's own attention keeps no first tokens beside a window"
        reading.refuse(attention, "sink_tokens", why)
    lengths = attention.section("key_sequence_lengths")
    reading.only(lengths, ("scalar_broadcast",))
    one_of(lengths, "scalar_broadcast", ("unit_batch",))
    reading.ignore(attention, "key_sequence_lengths", "lengths are always given row by row")
    reading.ignore(attention, "fallback_behavior", "the type is known")
    for name in ("architecture", "mixture_of_experts"):
        reading.ignore(model, name, _TELLS_NOTHING)
    reading.ignore(model, "sharding", "the model is not spread over devices")
    allowed = model.section("runtime_configurable")
    reading.only(allowed, ("prefix_cache", "continuous_batching", "chunked_prefill"))
    chunks = allowed.section("chunked_prefill")
    reading.only(chunks, ("chunk_size",))
    return ModelFacts(
        section=model,
        attention=attention,
        num_kv_heads=kv_heads,
        head_dim=attention.integer("head_dim", low=1),
        sliding_window=attention.integer("sliding_window", low=1),
        context_length=model.integer("max_sequence_length", low=1),
        vocab_size=model.integer("vocab_size", low=1),
        prefix_cache=allowed.boolean("prefix_cache"),
        continuous_batching=allowed.boolean("continuous_batching"),
        prefill_chunk=chunks.integer("chunk_size", low=1),
    )


def _check_type(reading: Reading, attention: Section) -> None:
    kind = required_text(attention, "type")
    if kind in _ATTENTION_TYPES:
        return
    fallback = attention.text("fallback_behavior")
    if fallback is None:
        reading.refuse(attention, "type", "it is no known attention, and there is no fallback")
    elif fallback not in _ATTENTION_TYPES:
        reading.refuse(attention, "fallback_behavior", "it is no known attention either")
    else:
        reading.ignore(attention, "type", f"the fallback {fallback} is taken")
