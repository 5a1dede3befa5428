"""The text contract, from the tokenizer files that a directory holds beside its graphs.

The same files accompany several package forms: tokenizer.json, tokenizer_config.json,
special_tokens_map.json, generation_config.json and the chat templates.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.package.document import Section, read_document, read_head, read_text
from tokenmill.package.model_package import Ignored, TextContract

_HEAD = frozenset({"added_tokens", "post_processor"})
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


@dataclass(frozen=True, slots=True)
class DeclaredIds:
    """What the package's own document says of token ids.

    Attributes:
        bos: None where it says nothing.
        eos: (id, evidence) pairs.
        pad: None where it says nothing.
        vocab_size: ids are below it.
        evidence_bos: file and field of `bos`.
    """

    bos: int | None
    eos: tuple[tuple[int, str], ...]
    pad: int | None
    vocab_size: int
    evidence_bos: str = ""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """A text contract, and what was left out of it."""

    text: TextContract
    ignored: tuple[Ignored, ...]
    generation: Section
    """generation_config.json; empty where there is none."""


def read_text_files(root: Path, ids: DeclaredIds) -> TextFiles:
    """Reads the tokenizer files of a directory. Each of them may be absent.

    Raises:
        InvalidPackage: a file that is malformed, or a BOS to add that nobody defines.
    """
    config = _optional(root / "tokenizer_config.json")
    generation = _optional(root / "generation_config.json")
    specials = _optional(root / "special_tokens_map.json")
    file = root / "tokenizer.json"
    tokenizer_file = file if os.path.lexists(file) else None
    tokenizer = read_head(file, _HEAD) if tokenizer_file else Section(file, "", {})
    added = _added_tokens(tokenizer)
    ignored: list[Ignored] = []
    tokens = _special_tokens(specials) | _special_tokens(config)
    eos = set()
    for token_id, evidence in (*ids.eos, *_more_eos(generation, config, tokens, added, ignored)):
        if 0 <= token_id < ids.vocab_size:
            eos.add(token_id)
        else:
            why = f"the vocabulary has the ids 0 to {ids.vocab_size - 1}"
            ignored.append(Ignored(evidence, str(token_id), why))
    pad = ids.pad
    if pad is not None and not 0 <= pad < ids.vocab_size:
        why = f"the vocabulary has the ids 0 to {ids.vocab_size - 1}"
        ignored.append(Ignored("pad_token_id", str(pad), why))
        pad = None
    bos, add_bos = _bos(ids, config, tokenizer, tokens, added, ignored)
    _name_tokens(tokens, config, added, {"bos_token": bos, "eos_token": _first(ids.eos)})
    default, named, source = _templates(root, config)
    text = TextContract(
        tokenizer_file=tokenizer_file,
        chat_template=default,
        named_templates=named,
        template_source=source,
        special_tokens=tokens,
        bos_token_id=bos,
        add_bos=add_bos,
        eos_token_ids=frozenset(eos),
        pad_token_id=pad,
    )
    return TextFiles(text, tuple(ignored), generation)


def _optional(file: Path) -> Section:
    """Reads a file if there is anything of that name; a broken link is an error, not nothing."""
    return read_document(file) if os.path.lexists(file) else Section(file, "", {})


def _first(eos: tuple[tuple[int, str], ...]) -> int | None:
    return eos[0][0] if eos else None


def _added_tokens(tokenizer: Section) -> dict[str, int]:
    """Returns token text to id of the tokens that stand outside the vocabulary's merges."""
    value = tokenizer.raw("added_tokens")
    if value is None:
        return {}
    if not isinstance(value, list):
        raise tokenizer.wrong("added_tokens", "it is not a list")
    out = {}
    for index, item in enumerate(value):
        content = item.get("content") if isinstance(item, dict) else None
        token_id = item.get("id") if isinstance(item, dict) else None
        if not isinstance(content, str) or not isinstance(token_id, int):
            raise tokenizer.wrong(f"added_tokens[{index}]", "it has no id and content")
        out[content] = token_id
    return out


def _special_tokens(section: Section) -> dict[str, str]:
    """Returns role to text: a token is written as a string, or as an object with `content`."""
    out = {}
    for role in _ROLES:
        value = section.raw(role)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            out[role] = value
        elif value is not None:
            raise section.wrong(role, "it is neither a string nor an object with `content`")
    return out


def _more_eos(
    generation: Section,
    config: Section,
    tokens: Mapping[str, str],
    added: Mapping[str, int],
    ignored: list[Ignored],
) -> Iterator[tuple[int, str]]:
    for token_id in generation.integers("eos_token_id"):
        yield token_id, generation.evidence("eos_token_id")
    token = tokens.get("eos_token")
    if token is None:
        return
    evidence = config.evidence("eos_token")
    if token in added:
        yield added[token], evidence
    elif added:
        ignored.append(Ignored(evidence, token, "tokenizer.json has no added token of that text"))


def _bos(
    ids: DeclaredIds,
    config: Section,
    tokenizer: Section,
    tokens: Mapping[str, str],
    added: Mapping[str, int],
    ignored: list[Ignored],
) -> tuple[int | None, bool]:
    """Returns the BOS id and whether a prompt begins with it.

    `add_bos_token` decides where it is written; else the tokenizer's post-processor does, by
    putting a token before the text.
    """
    prefix = _prefix_token(tokenizer, added)
    if prefix is not None and not 0 <= prefix < ids.vocab_size:
        why = f"the vocabulary has the ids 0 to {ids.vocab_size - 1}"
        ignored.append(Ignored(tokenizer.evidence("post_processor"), f"prefix {prefix}", why))
        prefix = None
    wanted = config.boolean("add_bos_token")
    named = added.get(tokens.get("bos_token", ""))
    bos = next((one for one in (ids.bos, named, prefix) if one is not None), None)
    if bos is not None and not 0 <= bos < ids.vocab_size:
        why = f"the vocabulary has the ids 0 to {ids.vocab_size - 1}"
        ignored.append(Ignored(ids.evidence_bos or "bos_token_id", str(bos), why))
        bos = named if named is not None and 0 <= named < ids.vocab_size else None
    if wanted is None:
        if prefix is not None and bos != prefix:
            why = f"the tokenizer puts {prefix} before a text"
            ignored.append(Ignored(ids.evidence_bos or "bos_token_id", str(bos), why))
            bos = prefix
        return bos, prefix is not None
    if wanted and bos is None:
        why = "it is true, and no file says which token that is"
        raise config.wrong("add_bos_token", why)
    if wanted is False and prefix is not None:
        why = f"{config.evidence('add_bos_token')} is false"
        ignored.append(Ignored(tokenizer.evidence("post_processor"), f"prefix {prefix}", why))
    return bos, wanted


def _prefix_token(tokenizer: Section, added: Mapping[str, int]) -> int | None:
    """Returns the id that the tokenizer's post-processor puts before a single text, or None."""
    processor = tokenizer.raw("post_processor")
    if not isinstance(processor, dict):
        return None
    steps = [processor]
    if processor.get("type") == "Sequence":
        listed = processor.get("processors")
        steps = (
            [step for step in listed if isinstance(step, dict)] if isinstance(listed, list) else []
        )
    for step in steps:
        found = _template_prefix(step, added)
        if found is not None:
            return found
    return None


def _template_prefix(step: Mapping[str, Any], added: Mapping[str, int]) -> int | None:
    try:
        if step.get("type") == "TemplateProcessing":
            first = step["single"][0]
            if "SpecialToken" in first:
                name = first["SpecialToken"]["id"]
                ids = step.get("special_tokens", {}).get(name, {}).get("ids") or [added.get(name)]
                return int(ids[0])
        elif step.get("type") in ("RobertaProcessing", "BertProcessing"):
            return int(step["cls"][1])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return None


def _name_tokens(
    tokens: dict[str, str],
    config: Section,
    added: Mapping[str, int],
    ids: Mapping[str, int | None],
) -> None:
    """Adds the text of tokens that are known by id only; an explicit null stays absent."""
    texts = {token_id: content for content, token_id in added.items()}
    for role, token_id in ids.items():
        if role not in tokens and not config.has_null(role) and token_id in texts:
            tokens[role] = texts[token_id]


def _templates(root: Path, config: Section) -> tuple[str | None, dict[str, str], str]:
    """Returns the default template, the others by name, and where the default came from."""
    named: dict[str, str] = {}
    default, source = None, ""
    value = config.raw("chat_template")
    if isinstance(value, str):
        default, source = value, config.evidence("chat_template")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            name = item.get("name") if isinstance(item, dict) else None
            template = item.get("template") if isinstance(item, dict) else None
            if not isinstance(name, str) or not isinstance(template, str):
                raise config.wrong(f"chat_template[{index}]", "it has no name and template")
            named[name] = template
        if len(named) == 1 or "default" in named:
            name = "default" if "default" in named else next(iter(named))
            default = named.pop(name)
            source = f"{config.evidence('chat_template')}, {name!r}"
    elif value is not None:
        raise config.wrong("chat_template", "it is neither a string nor a list of templates")
    single = root / "chat_template.json"
    if default is None and single.is_file():
        section = read_document(single)
        default, source = section.text("chat_template"), section.evidence("chat_template")
    for file in sorted((root / "additional_chat_templates").glob("*.jinja")):
        named[file.stem] = read_text(file)
    file = root / "chat_template.jinja"
    if file.is_file():
        default, source = read_text(file), file.name
    return default, named, source if default is not None else ""
