"""generation_config.json: what a request does where it says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.model_package import GenerationDefaults, Ignored
from tokenmill.package.search_defaults import read_search

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": (None, []),
    "bad_words_ids": (None, []),
    "constraints": (None, []),
    "dola_layers": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None, []),
    "forced_bos_token_id": (None,),
    "forced_decoder_ids": (None, []),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "sequence_bias": (None, [], {}),
    "suppress_tokens": (None, []),
    "typical_p": (None, 1),
}
"""Fields that change which tokens come and are not executed, with what changes nothing."""

_SILENT = (
    "_from_model_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "transformers_version",
    "use_cache",
    "cache_implementation",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "remove_invalid_values",
    "renormalize_logits",
    "trust_remote_code",
)
"""Fields that are read elsewhere, or that say nothing about the tokens that come."""


class Generation(NamedTuple):
    """What the file says."""

    defaults: GenerationDefaults
    ignored: tuple[Ignored, ...]
    losses: tuple[Ignored, ...]


def read_generation(section: Section, *, lossy: bool) -> Generation:
    """Reads the file.

    `do_sample` false is greedy. Where it is absent the sampling fields that are there still
    count: whoever wrote a temperature wants it.

    Args:
        section: the file; empty where there is none.
        lossy: go on without fields that would change the output, and list them as losses.

    Raises:
        UnsupportedModel: a field that would change the output and is not executed.
    """
    search = read_search(section, lossy=lossy)
    losses = list(search.losses)
    for item in _changing(section):
        if not lossy:
            raise UnsupportedModel(
                f"{item.field} is {item.value}",
                why=item.why,
                fix="Remove the field, or read the package lossily (--lossy)",
            )
        losses.append(item)
    for name in _SILENT:
        section.raw(name)
    unknown = (
        Ignored(f"{section.file.name} {field}", value, "not known to this version")
        for field, value in section.unused()
    )
    return Generation(_defaults(section), (*search.ignored, *unknown), tuple(losses))


def _changing(section: Section) -> Iterator[Ignored]:
    for name, neutral in _NEUTRAL.items():
        value = section.raw(name)
        if value not in neutral:
            yield Ignored(
                section.evidence(name), section.brief(name), "not executed by this version"
            )


def _defaults(section: Section) -> GenerationDefaults:
    temperature = section.number("temperature", 0, 100)
    top_k = section.integer("top_k")
    top_p = section.number("top_p", 0, 1)
    min_p = section.number("min_p", 0, 1)
    max_tokens = section.integer("max_new_tokens", low=1)
    if section.boolean("do_sample") is False:
        return GenerationDefaults(temperature=0.0, max_tokens=max_tokens)
    return GenerationDefaults(temperature, top_k, top_p or None, min_p, max_tokens=max_tokens)
