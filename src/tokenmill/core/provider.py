r"""An execution provider as people write it.

    NAME[|option=value...]                                       built into ONNX Runtime
    plugin:PATH[|device=DEVICE][|ep=NAME][|opt.option=value...]  a library that registers providers

`opt.` may stand before an option of a built-in provider, too. Everything behind the first "=" of
a part is its value. A "|" within a path or a value is written "\|", a backslash before it "\\";
any other backslash stands for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.core.errors import InvalidOption

_PLUGIN = "plugin:"
_OPTION = "opt."
_FORM = "NAME|option=value|... or plugin:PATH|device=CPU|opt.option=value|..."


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider that is asked for.

    Attributes:
        name: "cuda" or "CUDAExecutionProvider"; of a plug-in, which of its providers to take, or
            empty for its first one.
        options: passed to the provider as they are.
        library: the shared library that registers it; None for one that is built in.
        device: of a plug-in: "CPU", "GPU", "NPU", a vendor, or the device's number; empty takes
            the provider's first one.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    library: Path | None = None
    device: str = ""


def parse_provider(text: str) -> Provider:
    """Reads one provider; see the module's docstring.

    Raises:
        InvalidOption: it is not written so; the message names the part.
    """
    head, *parts = _split(text)
    pairs: dict[str, str] = {}
    for number, part in enumerate(parts, start=2):
        name, equals, value = part.partition("=")
        key = name.strip()
        if not equals or not key:
            raise _wrong(text, f"part {number}, {part!r}, is not option=value")
        if key in pairs:
            raise _wrong(text, f"part {number} gives {key!r} a second time")
        pairs[key] = value
    if head.startswith(_PLUGIN):
        return _plugin(text, head.removeprefix(_PLUGIN).strip(), pairs)
    if not head.strip():
        raise _wrong(text, "part 1, the name, is empty")
    if "device" in pairs:
        raise _wrong(text, "device= is for plug-ins; a built-in provider has options of its own")
    options = {key.removeprefix(_OPTION): value for key, value in pairs.items()}
    if "" in options or len(options) < len(pairs):
        raise _wrong(text, "an option has no name, or is given twice, with and without 'opt.'")
    return Provider(head.strip(), options)


def _plugin(text: str, path: str, pairs: dict[str, str]) -> Provider:
    if not path:
        raise _wrong(text, "part 1 has no path behind 'plugin:'")
    options: dict[str, str] = {}
    chosen = {"device": "", "ep": ""}
    for key, value in pairs.items():
        name = key.removeprefix(_OPTION)
        if key in chosen:
            if not value.strip():
                raise _wrong(text, f"{key}= has no value")
            chosen[key] = value.strip()
        elif name == key or not name:
            raise _wrong(text, f"a plug-in has device=, ep= and opt.NAME=, and no {key!r}")
        else:
            options[name] = value
    # The runtime would look for a relative path beside its own libraries.
    library = Path(path).expanduser().absolute()
    return Provider(chosen["ep"], options, library, chosen["device"])


def _split(text: str) -> list[str]:
    parts = [""]
    escaped = False
    for i, character in enumerate(text):
        if escaped:
            escaped = False
            parts[-1] += character
        elif character == "\\" and text[i + 1 : i + 2] in ("|", "\\"):
            escaped = True
        elif character == "|":
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _wrong(text: str, why: str) -> InvalidOption:
    return InvalidOption(f"ep is {text!r}", why=why, fix=f"Write {_FORM}")
