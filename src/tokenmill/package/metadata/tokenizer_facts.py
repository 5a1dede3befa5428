"""The section `package`: where the tokenizer is, and its special tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.artifacts import artifact_path
from tokenmill.package.metadata.reading import Reading, required_text
from tokenmill.package.model_package import TextContract
from tokenmill.package.text_files import DeclaredIds, read_text_files

_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What `package.tokenizer` says.

    Attributes:
        section: `package.tokenizer.special_tokens`.
        directory: where tokenizer.json and its companions are.
        special_tokens: role ("bos", "eos", ...) to id and text.
    """

    section: Section
    directory: Path
    special_tokens: dict[str, tuple[int, str]]


def read_tokenizer_facts(
    reading: Reading, document: Section, root: Path, default: Path
) -> TokenizerFacts:
    """Reads the section `package`.

    Args:
        default: where the tokenizer's files are if the section names none.

    Raises:
        InvalidPackage: a field that is not known, or an artifact that is not there or outside.
        UnsupportedModel: a tokenizer in another format than tokenizer.json.
    """
    package = document.section("package")
    reading.only(package, ("tokenizer", "constraint_languages"))
    for language in package.children("constraint_languages"):
        reading.only(language, ("dialect", "version", "component"))
    reading.ignore(package, "constraint_languages", "replies are not constrained yet")
    tokenizer = package.section("tokenizer")
    reading.only(
        tokenizer, ("algorithm", "vocab_size", "byte_level", "artifacts", "special_tokens")
    )
    if tokenizer.names():
        required_text(tokenizer, "algorithm")
        if tokenizer.integer("vocab_size", low=1) is None:
            raise tokenizer.wrong("vocab_size", "it is missing")
        tokenizer.boolean("byte_level")
    return TokenizerFacts(
        tokenizer.section("special_tokens"),
        _directory(reading, tokenizer, root, default),
        _special_tokens(reading, tokenizer),
    )


def read_text(
    reading: Reading,
    facts: TokenizerFacts,
    more_eos: tuple[tuple[int, str], ...],
    vocab_size: int,
) -> TextContract:
    """Returns the text contract of the tokenizer's files and the document's special tokens.

    Args:
        more_eos: (id, evidence) of ends of text that the document names elsewhere.

    Raises:
        InvalidPackage: an id beyond the vocabulary, or a malformed file.
    """
    section, tokens = facts.section, facts.special_tokens
    for role, (token_id, _) in tokens.items():
        if token_id >= vocab_size:
            why = f"the vocabulary has the ids 0 to {vocab_size - 1}"
            raise section.wrong(f"{role}.id", f"it is {token_id}, and {why}")
    bos, eos, pad = (tokens.get(role) for role in ("bos", "eos", "pad"))
    evidence = section.evidence("eos.id")
    files = read_text_files(
        facts.directory,
        DeclaredIds(
            bos=bos[0] if bos else None,
            eos=(*(((eos[0], evidence),) if eos else ()), *more_eos),
            pad=pad[0] if pad else None,
            vocab_size=vocab_size,
            evidence_bos=section.evidence("bos.id"),
        ),
    )
    reading.ignored.extend(files.ignored)
    declared = {f"{role}_token": content for role, (_, content) in tokens.items()}
    return replace(files.text, special_tokens={**declared, **files.text.special_tokens})


def _directory(reading: Reading, tokenizer: Section, root: Path, default: Path) -> Path:
    artifacts = tokenizer.children("artifacts")
    found = None
    for artifact in artifacts:
        reading.only(artifact, ("location",))
        path = artifact_path(root, artifact, "location")
        if path.name == _FILE and found is None:
            found = path.parent
        elif path.name != _FILE:
            reading.ignore(artifact, "location", f"{_FILE} and its companions are read")
    if artifacts and found is None and not (default / _FILE).is_file():
        raise UnsupportedModel(
            f"{tokenizer.file}: {tokenizer.field('artifacts')} names no {_FILE}",
            why="this version reads no other tokenizer format",
            fix=f"Put the model's {_FILE} beside its graph",
        )
    return found or default


def _special_tokens(reading: Reading, tokenizer: Section) -> dict[str, tuple[int, str]]:
    section = tokenizer.section("special_tokens")
    out = {}
    for role in section.names():
        token = section.section(role)
        reading.only(token, ("id", "content"))
        token_id = token.integer("id")
        if token_id is None:
            raise token.wrong("id", "it is missing")
        out[role] = (token_id, required_text(token, "content"))
    return out
