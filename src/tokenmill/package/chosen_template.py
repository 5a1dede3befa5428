"""A chat template that the caller chooses in place of the package's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenmill.core.errors import InvalidOption
from tokenmill.package.document import read_text
from tokenmill.package.model_package import TextContract


def with_template(text: TextContract, wanted: str) -> TextContract:
    """Returns the text contract with another default template.

    Args:
        text: the package's own.
        wanted: the name of one of the package's templates, else a file with a Jinja template.

    Raises:
        InvalidOption: it is neither.
        InvalidPackage: a file that cannot be read, or is not UTF-8.
    """
    if wanted in text.named_templates:
        return replace(
            text,
            chat_template=text.named_templates[wanted],
            template_source=f"the package's template {wanted!r}, by chat_template",
        )
    file = Path(wanted).expanduser()
    if not _is_file(file):
        names = ", ".join(sorted(text.named_templates))
        raise InvalidOption(
            f"chat_template is {wanted!r}",
            why=f"there is no such file, and the package has {names or 'no templates with names'}",
            fix="Give a file with a Jinja template, or the name of one of the package's templates",
        )
    return replace(text, chat_template=read_text(file), template_source=f"{file}, by chat_template")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a NUL: a template's text, not its file
        return False
