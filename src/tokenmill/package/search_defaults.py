"""The `search` section of genai_config.json: what a request does where it says nothing."""

from __future__ import annotations

from typing import NamedTuple

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.model_package import GenerationDefaults, Ignored

_NEUTRAL = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "length_penalty": 1,
    "diversity_penalty": 0,
    "repetition_penalty": 1,
}
"""Fields that are not executed, with the value at which they change nothing."""


class Search(NamedTuple):
    """What the section says."""

    defaults: GenerationDefaults
    ignored: tuple[Ignored, ...]
    losses: tuple[Ignored, ...] = ()


def read_search(search: Section, *, lossy: bool = False) -> Search:
    """Reads the section.

    Args:
        lossy: go on without beams, and list that among the losses.

    Raises:
        UnsupportedModel: it asks for beams, which would change every output.
    """
    ignored: list[Ignored] = []
    losses: list[Ignored] = []
    for name, neutral in _NEUTRAL.items():
        value = search.number(name, -1e9, 1e9)
        if value is None or value == neutral:
            continue
        if name == "num_beams" and lossy:
            why = "this version does not search with beams; it takes one token at a time"
            losses.append(Ignored(search.evidence(name), f"{value:g}", why))
            continue
        if name == "num_beams":
            raise UnsupportedModel(
                f"{search.evidence(name)} is {value:g}",
                why="this version does not search with beams",
                fix=f"Set it to {neutral}, or read the package lossily (--lossy)",
            )
        ignored.append(Ignored(search.evidence(name), f"{value:g}", "not executed by this version"))
    for name, why in (
        ("max_length", "the context length limits a request that names no limit"),
        ("early_stopping", "it concerns beams"),
        ("random_seed", "a request without a seed draws its own"),
    ):
        if name in search:
            value = search.raw(name)
            ignored.append(Ignored(search.evidence(name), str(value), why))
    # Whether past and present may be one buffer is seen in the graph's own operators.
    search.boolean("past_present_share_buffer")
    return Search(_defaults(search), tuple(ignored), tuple(losses))


def _defaults(search: Section) -> GenerationDefaults:
    temperature = search.number("temperature", 0, 100)
    top_k = search.integer("top_k")
    top_p = search.number("top_p", 0, 1)
    min_p = search.number("min_p", 0, 1)
    if search.boolean("do_sample") is not True:
        return GenerationDefaults(temperature=0.0)
    return GenerationDefaults(temperature, top_k, top_p or None, min_p)
