"""Good packages with one fault each: a typed error that names the place, and soon.

What is broken, and what the error says, stands in the tables of `support.broken_*`.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.breaking import Broken, copy_of, field, several
from support.broken_genai import GENAI_CONFIGS
from support.broken_graphs import GRAPHS
from support.broken_hugging_face import HUGGING_FACE
from support.broken_manifests import MANIFESTS
from support.broken_metadata import METADATA
from support.broken_workflows import WORKFLOWS
from tokenmill import LLM
from tokenmill.core.errors import TokenmillError
from tokenmill.package.load import load_package

TABLES = {
    "graph": GRAPHS,
    "genai": GENAI_CONFIGS,
    "hugging face": HUGGING_FACE,
    "metadata": METADATA,
    "workflow": WORKFLOWS,
    "manifest": MANIFESTS,
}
CASES = {f"{table}: {case.name}": case for table, cases in TABLES.items() for case in cases}
SECONDS = 5.0
KIBIBYTES = 200 << 10


class Outcome(NamedTuple):
    """What came of reading a broken package.

    Attributes:
        message: of the error, the package's own path taken out; None where it loads.
        seconds: that it took.
        memory: by which the process's peak grew, in KiB.
    """

    message: str | None
    seconds: float
    memory: int


def read(case: Broken, directory: Path) -> Outcome:
    """Breaks a copy of the good package, reads it, and opens it where the case asks for that.

    Errors that are not typed fail the test.
    """
    root = directory / "package"
    if callable(case.base):
        case.base(root)
    else:
        copy_of(case.base, root)
    case.fault(root)
    before, start, message = _peak(), time.monotonic(), None
    try:
        load_package(root, case.options)
        if case.opened:
            LLM(root, cache_dir=directory / "cache", threads=1).close()
    except TokenmillError as error:
        message = str(error).replace(f"{root}/", "").replace(str(root), "PACKAGE")
    return Outcome(message, time.monotonic() - start, _peak() - before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Outcome]:
    return {
        name: read(case, tmp_path_factory.mktemp("broken", numbered=True))
        for name, case in CASES.items()
    }


def test_the_tables_hold_each_case_once():
    assert len(CASES) == sum(len(cases) for cases in TABLES.values()) > 120


@pytest.mark.parametrize("name", CASES)
def test_a_broken_package_is_refused_by_the_place(outcomes, name):
    message, seconds, memory = outcomes[name]
    assert message is not None, "it loads"
    assert CASES[name].says in message
    assert seconds < SECONDS
    assert memory < KIBIBYTES


def test_every_fault_has_a_message_of_its_own(outcomes):
    names: dict[str | None, str] = {}
    for name, outcome in outcomes.items():
        assert outcome.message not in names, f"{names[outcome.message]} says the same as {name}"
        names[outcome.message] = name


LISTED = {
    "an end of text beyond the vocabulary": (
        "llama/genai-fp32",
        field("genai_config.json", "model.eos_token_id", [2, 999]),
        ("genai_config.json model.eos_token_id", "999"),
    ),
    "a padding token beyond the vocabulary": (
        "llama/genai-fp32",
        field("genai_config.json", "model.pad_token_id", 999),
        ("pad_token_id", "999"),
    ),
    "more context than the table of positions has, genai": (
        "llama/genai-fp32",
        field("genai_config.json", "model.context_length", 1 << 20),
        ("genai_config.json model.context_length", "1048576"),
    ),
    "more context than the table of positions has, metadata": (
        "llama/mobius-standard",
        field("inference_metadata.yaml", "model.max_sequence_length", 1 << 20),
        ("inference_metadata.yaml model.max_sequence_length", "1048576"),
    ),
    "more context than the table of positions has, Hugging Face": (
        "qwen2/bare",
        several(
            lambda root: (root / "config.json").write_text("{}"),
            field("config.json", "max_position_embeddings", 1 << 20),
        ),
        ("config.json max_position_embeddings", "1048576"),
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_cannot_be_meant_is_left_out_and_listed(tmp_path, name):
    fixture, fault, listed = LISTED[name]
    root = copy_of(fixture, tmp_path / "package")
    fault(root)
    package = load_package(root)
    assert listed in [(item.field, item.value) for item in package.ignored]
    assert package.context_length == 256
    assert all(token_id < package.vocab_size for token_id in package.text.eos_token_ids)


@pytest.mark.parametrize("fixture", ["llama/genai-fp32", "qwen2/bare", "llama/optimum"])
def test_a_graph_that_links_out_of_the_package_is_refused_in_every_form(tmp_path, fixture):
    root = copy_of(fixture, tmp_path / "package")
    (root / "model.onnx").rename(tmp_path / "model.onnx")
    (root / "model.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(TokenmillError, match=r"package/model\.onnx is a link out of"):
        load_package(root)


def test_a_link_to_the_package_inside_the_package_is_harmless(tmp_path):
    root = copy_of("qwen2/model-package", tmp_path / "package")
    (root / "variants/cpu-fp32/again").symlink_to(root)
    assert load_package(root).choices[0].chosen == "cpu-fp32"
