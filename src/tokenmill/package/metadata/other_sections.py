"""The sections beside model, pipeline, generation and package: noted, skipped or refused."""

from __future__ import annotations

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, one_of, required_text

_TELLS_NOTHING = "it changes no output; the graph tells it"


def read_informative_sections(reading: Reading, document: Section) -> None:
    """Checks and notes the sections that change no output.

    Raises:
        InvalidPackage: a field that is not known.
    """
    hardware = document.section("hardware_requirements")
    reading.only(
        hardware,
        (
            "min_memory_gb",
            "required_dtypes",
            "beneficial_dtypes",
            "kv_cache_memory_per_1k_tokens_mb",
            "supports_tensor_parallel",
            "min_tp_degree",
        ),
    )
    reading.ignore(document, "hardware_requirements", "what is there decides")
    quantization = document.section("quantization")
    reading.only(quantization, ("default", "overrides"))
    for override in quantization.children("overrides"):
        reading.only(override, ("layers", "component", "precision"))
        required_text(override, "precision")
    reading.ignore(document, "quantization", _TELLS_NOTHING)
    cache = document.section("kv_cache")
    reading.only(cache, ("native_dtype",))
    cache.text("native_dtype")
    reading.ignore(document, "kv_cache", _TELLS_NOTHING)


_GENERATES = "generation"
_PROFILES = frozenset(
    {_GENERATES, "embedding", "reranking", "classification", "reward", "transcription"}
)
_PROFILE = (
    "kind",
    "version",
    "requirement",
    "outputs",
    "pooling",
    "decoding",
    "batch_invariance",
    "generation_affecting",
)


def read_profiles(reading: Reading, document: Section) -> None:
    """Checks the task profiles: text generation is executed, ignorable ones are skipped unread.

    Raises:
        InvalidPackage: a field that is not known.
        UnsupportedModel: a required profile of another kind; names it.
    """
    profiles = document.section("profiles")
    for name in profiles.names():
        profile = profiles.section(name)
        requirement = one_of(profile, "requirement", ("required", "ignorable"))
        if requirement == "ignorable":
            reading.ignore(profiles, name, "it is ignorable")
            continue
        reading.only(profile, _PROFILE)
        kind = required_text(profile, "kind")
        required_text(profile, "version")
        if kind == _GENERATES:
            reading.ignore(profiles, name, "text generation is what this version does")
            continue
        known = "it is not executed" if kind in _PROFILES else "it is not known"
        reading.refuse(profile, "kind", f"the profile is required, and {known} by this version")


_REFUSED = {
    "adapters": "parameter adapters are not executed",
    "speculative": "proposals of a second model are not executed",
    "preprocessing": "pictures and sound are not read",
}


def refuse_other_sections(reading: Reading, document: Section) -> None:
    """Refuses whole sections that are not executed.

    Raises:
        UnsupportedModel: there is one, and the reading is strict.
    """
    for name, why in _REFUSED.items():
        if name in document:
            reading.refuse(document, name, why)


def check_hints(hints: Section) -> None:
    """Checks execution_hints.json: preferences may be ignored, what is forced may not.

    Raises:
        UnsupportedModel: a hint that is forced; names it.
    """
    pending = [(name, hints.raw(name)) for name in hints.names()]
    while pending:
        path, value = pending.pop(0)
        if value == "force" and path.endswith("strength"):
            raise UnsupportedModel(
                f"{hints.file}: {path} is 'force'",
                why="this version follows no hints, so it cannot promise to",
                fix="Set it to 'prefer', or remove the hint",
            )
        if isinstance(value, dict):
            pending.extend((f"{path}.{name}", inner) for name, inner in value.items())
        elif isinstance(value, list):
            pending.extend((f"{path}[{index}]", inner) for index, inner in enumerate(value))
