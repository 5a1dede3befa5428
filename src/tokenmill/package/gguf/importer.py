"""Turns a GGUF file into a directory that onnxruntime-genai and Tokenmill read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.errors import InvalidPackage, TokenmillError
from tokenmill.package.gguf.architectures import Architecture, find_architecture
from tokenmill.package.gguf.atomic_directory import replaced_directory
from tokenmill.package.gguf.decoder import DecoderBuilder
from tokenmill.package.gguf.documents import (
    chat_templates,
    genai_config,
    generation_config,
    sampling_defaults,
    special_tokens,
    tokenizer_config,
)
from tokenmill.package.gguf.embedding import EMBEDDING
from tokenmill.package.gguf.external_data import ExternalData
from tokenmill.package.gguf.geometry import Geometry, read_geometry
from tokenmill.package.gguf.metadata import Metadata
from tokenmill.package.gguf.reader import GgufFile, read_gguf
from tokenmill.package.gguf.tokenizer import BuiltTokenizer, build_tokenizer
from tokenmill.package.gguf.vocabulary import Vocabulary, read_vocabulary
from tokenmill.package.gguf.weights import Precision, Weights

IMPORTER_VERSION = "1"
"""Changes whenever the same file would become another graph; part of the fingerprint."""

SIDECAR = "tokenmill.json"
"""What onnxruntime-genai would refuse to find in its own document."""

Progress = Callable[[str, int, int], None]


def import_gguf(
    source: Path,
    destination: Path,
    *,
    precision: str = "keep",
    progress: Progress | None = None,
) -> Path:
    """Converts a GGUF file into an onnxruntime-genai directory.

    The directory appears whole or not at all: it is written beside `destination` and renamed.
    One tensor at a time is in memory.

    Args:
        source: the `.gguf` file.
        destination: the directory to make; one that is there is replaced.
        precision: "keep" holds every weight's own blocks exactly; "fp32" dequantises; "int8"
            and "int4" quantise again, in blocks of 32.
        progress: called with a stage ("hash", "weights"), what is done and what there is in all.

    Returns:
        `destination`.

    Raises:
        ModelNotFound: there is no such file.
        CorruptFile: not a GGUF file, or a truncated or damaged one.
        UnsupportedModel: a sound file that needs something that is not supported.
        InvalidPackage: tensors or keys are missing, surplus or contradictory.
        InvalidOption: an unknown precision.
        TokenmillError: the destination cannot be written.
    """
    chosen = Precision.parse(precision)
    report = progress or (lambda stage, done, total: None)
    plan = _plan(read_gguf(source))
    digest = _sha256(source, report)
    try:
        with replaced_directory(destination) as directory:
            _write(directory, plan, chosen, digest, report)
    except OSError as error:
        raise TokenmillError(
            f"cannot import {source.name} into {destination}",
            why=error.strerror or str(error),
            fix="Check that the place is writable and has room for the model",
        ) from error
    return destination


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that is known of the result before a weight is read."""

    file: GgufFile
    metadata: Metadata
    architecture: Architecture
    geometry: Geometry
    vocab_size: int
    vocabulary: Vocabulary
    tokenizer: BuiltTokenizer


def _plan(file: GgufFile) -> _Plan:
    metadata = Metadata(file.metadata)
    architecture = find_architecture(metadata.text("general.architecture"))
    geometry = read_geometry(architecture, metadata)
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise InvalidPackage(f"the GGUF file has no tensor {EMBEDDING!r}")
    vocab_size = embedding.shape[0]
    vocabulary = read_vocabulary(metadata, vocab_size)
    tokenizer = build_tokenizer(metadata, vocabulary)
    return _Plan(file, metadata, architecture, geometry, vocab_size, vocabulary, tokenizer)


def _write(
    directory: Path, plan: _Plan, precision: Precision, digest: str, report: Progress
) -> None:
    weights = Weights(plan.file, precision)
    with (directory / "model.onnx.data").open("wb") as file:
        data = ExternalData(file, "model.onnx.data")
        model = DecoderBuilder(plan.architecture, plan.geometry, weights, data, report).build()
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    sampling = sampling_defaults(plan.metadata)
    template, named = chat_templates(plan.metadata)
    vocabulary, geometry = plan.vocabulary, plan.geometry
    documents: dict[str, Any] = {
        "tokenizer.json": plan.tokenizer.document,
        "tokenizer_config.json": tokenizer_config(
            vocabulary, plan.tokenizer, geometry.context_length, template, named
        ),
        "special_tokens_map.json": special_tokens(vocabulary),
        "generation_config.json": generation_config(vocabulary, sampling),
        SIDECAR: _sidecar(plan, precision, digest, weights, sampling),
        "genai_config.json": genai_config(
            plan.architecture.genai_type, geometry, plan.vocab_size, vocabulary, sampling
        ),
    }
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, document in documents.items():
        indent = None if name == "tokenizer.json" else 2
        text = json.dumps(document, ensure_ascii=False, indent=indent)
        if name == "tokenizer.json":
            _check_tokenizer(text)
        (directory / name).write_text(text, encoding="utf-8")


def _check_tokenizer(text: str) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise InvalidPackage(
            "the GGUF file's vocabulary does not make a tokenizer", why=str(error)
        ) from error


def _sidecar(
    plan: _Plan,
    precision: Precision,
    digest: str,
    weights: Weights,
    sampling: dict[str, float | int],
) -> dict[str, Any]:
    identity = json.dumps([digest, precision.value, IMPORTER_VERSION])
    provenance = {
        "file": plan.file.path.name,
        "sha256": digest,
        "name": plan.metadata.get_text("general.name"),
        "license": plan.metadata.get_text("general.license"),
        "architecture": plan.architecture.name,
        "importer": IMPORTER_VERSION,
        "precision": precision.value,
    }
    return {
        "format": 1,
        "fingerprint": f"sha256:{hashlib.sha256(identity.encode()).hexdigest()}",
        "provenance": {key: value for key, value in provenance.items() if value is not None},
        "precision": weights.describe(),
        "blocks": {kind: held._asdict() for kind, held in weights.held.items()},
        "defaults": sampling,
        "warnings": list(plan.tokenizer.warnings),
    }


def _sha256(path: Path, report: Progress) -> str:
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            report("hash", done, total)
    return digest.hexdigest()
