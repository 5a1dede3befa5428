"""The section `generation`: what a request does where it says nothing, and what it may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import NOT_EXECUTED, Reading, required_text
from tokenmill.package.model_package import GenerationDefaults, Range

_CHANGES_OUTPUT = {
    "repetition_penalty": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
}
"""Not executed, with the value at which they change nothing."""
_OF_BEAMS = ("length_penalty", "diversity_penalty")
_DEFAULTS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "max_length",
    "early_stopping",
    *_CHANGES_OUTPUT,
    *_OF_BEAMS,
)
_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
}
"""Names of fields that a request can set: in the document, and in `GenerationDefaults`."""


def read_defaults(reading: Reading, generation: Section) -> GenerationDefaults:
    """Reads `generation.defaults`.

    Raises:
        InvalidPackage: a field that is not known, or an impossible value.
        UnsupportedModel: a field that would change the output and is not executed.
    """
    defaults = generation.section("defaults")
    reading.only(defaults, _DEFAULTS)
    for name, neutral in _CHANGES_OUTPUT.items():
        value = defaults.number(name, 0, 1e9)
        if value is not None and value != neutral:
            reading.refuse(defaults, name, NOT_EXECUTED)
    for name in _OF_BEAMS:
        defaults.number(name, -1e9, 1e9)
        reading.ignore(defaults, name, "it concerns beams")
    defaults.boolean("early_stopping")
    reading.ignore(defaults, "early_stopping", "it concerns beams")
    defaults.integer("max_length", low=1)
    why = "the context length limits a request that names no limit"
    reading.ignore(defaults, "max_length", why)
    temperature = defaults.number("temperature", 0, 100)
    top_k = defaults.integer("top_k")
    top_p = defaults.number("top_p", 0, 1)
    if defaults.boolean("do_sample") is False:
        for name in ("temperature", "top_k", "top_p"):
            reading.ignore(defaults, name, f"{defaults.evidence('do_sample')} is false")
        return GenerationDefaults(temperature=0.0)
    return GenerationDefaults(temperature=temperature, top_k=top_k, top_p=top_p or None)


def read_overrides(
    reading: Reading, generation: Section, is_request_input: Callable[[str], bool]
) -> Mapping[str, Range] | None:
    """Reads `generation.overrides`, the fields that a request may set; None: all of them.

    Args:
        is_request_input: whether a name is an input of the workflow that requests give, with a
            runtime role.

    Raises:
        InvalidPackage: a field that is not known, a range without numbers, or an input that is
            no such input.
    """
    overrides = generation.section("overrides")
    names = overrides.names()
    if not names:
        return None
    out: dict[str, Range] = {}
    for name in names:
        override = overrides.section(name)
        reading.only(override, ("input", "constraint"))
        value = required_text(override, "input")
        if not is_request_input(value):
            why = f"{value!r} is no workflow input that a request gives, with a runtime role"
            raise override.wrong("input", why)
        allowed = _range(reading, override.section("constraint"))
        if name not in _FIELDS:
            reading.ignore(overrides, name, "a request has no such field here")
        elif _FIELDS[name] in out:
            raise overrides.wrong(name, f"{_FIELDS[name]} is there twice, by two names")
        else:
            out[_FIELDS[name]] = allowed
    return out


def _range(reading: Reading, constraint: Section) -> Range:
    reading.only(constraint, ("minimum", "maximum"))
    low = constraint.number("minimum", -1e300, 1e300)
    high = constraint.number("maximum", -1e300, 1e300)
    if low is not None and high is not None and low > high:
        raise constraint.wrong("minimum", f"{low:g} is above the maximum, {high:g}")
    return Range(low, high)
