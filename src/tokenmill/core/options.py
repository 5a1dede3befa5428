"""The one table of option names. Every door is made from it.

A row gives an option's Python argument, command-line flag, environment variable, TOML key, HTTP
field, type, default and help. Options of the scope MODEL say how a model is found and loaded;
those of the scope REQUEST belong to one generation.

Precedence: what is given at the door, then the environment, then the configuration file, then
the default. Requests take no defaults from environment or file: what a request does is written
in the request, or in the package.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tokenmill.core.byte_size import parse_bytes
from tokenmill.core.errors import InvalidOption
from tokenmill.core.provider import parse_provider


class Scope(Enum):
    """What an option belongs to."""

    MODEL = "model"
    REQUEST = "request"


class Kind(Enum):
    """The type of an option's value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "switch"
    PATH = "path"
    TEXTS = "texts"
    INTEGERS = "integers"
    BYTES = "bytes"
    """A whole number, or text such as "4GB"; see `parse_bytes`."""
    PRIORITY = "priority"
    """A whole number, or one of `PRIORITIES`."""


PRIORITIES: Mapping[str, int] = {"low": -10, "normal": 0, "high": 10}
"""Words for priorities."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: the Python argument, and the TOML key.
        scope: see `Scope`.
        kind: see `Kind`.
        default: None where "not given" is a value of its own.
        help: one sentence, with the unit.
        flag: on the command line; empty for none.
        http: the field of a request body; empty for none.
        choices: the allowed texts; empty for any.
        minimum: the least number allowed.
        reads: what will read each text of a list; called to refuse wrong ones at once.
    """

    name: str
    scope: Scope
    kind: Kind
    default: Any
    help: str
    flag: str = ""
    http: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    reads: Callable[[str], object] | None = None

    @property
    def env(self) -> str:
        """The environment variable; empty for options of requests."""
        return f"TOKENMILL_{self.name.upper()}" if self.scope is Scope.MODEL else ""

    @property
    def toml(self) -> str:
        """The key in the configuration file; empty for options of requests."""
        return f"model.{self.name}" if self.scope is Scope.MODEL else ""

    def parse(self, text: str, source: str) -> Any:
        """Reads a value from text, as it stands in the environment.

        Raises:
            InvalidOption: it is no such value; the message names the source.
        """
        try:
            return self.check(self._from_text(text), source)
        except ValueError:
            raise InvalidOption(
                f"{source} is {text!r}", why=f"it must be {_EXPECTED[self.kind]}"
            ) from None

    def check(self, value: Any, source: str) -> Any:
        """Returns the value in its type, or raises `InvalidOption` naming the source."""
        if value is None and self.default is None:
            return None
        right = _is_kind(value, self.kind)
        if not right:
            raise InvalidOption(
                f"{source} is {value!r}", why=f"it must be {_EXPECTED[self.kind]}", fix=self.help
            )
        if self.choices and value not in self.choices:
            raise InvalidOption(
                f"{source} is {value!r}", why=f"it must be one of {', '.join(self.choices)}"
            )
        if self.minimum is not None and value < self.minimum:
            raise InvalidOption(f"{source} is {value!r}", why=f"the least is {self.minimum:g}")
        normal = _normal(value, self.kind, source)
        if self.reads is not None:
            for text in normal:
                self._try(text, source)
        return normal

    def _try(self, text: str, source: str) -> None:
        assert self.reads is not None, "the caller has looked"
        try:
            self.reads(text)
        except InvalidOption as error:
            raise InvalidOption(f"{source} has {text!r}", why=error.why, fix=error.fix) from None

    def _from_text(self, text: str) -> Any:
        match self.kind:
            case Kind.INTEGER:
                return int(text)
            case Kind.NUMBER:
                return float(text)
            case Kind.SWITCH:
                return _SWITCH.get(text.strip().lower(), text)
            case Kind.PATH:
                return Path(text)
            case Kind.TEXTS:
                return tuple(part for part in _split_at_commas(text) if part)
            case Kind.INTEGERS:
                return tuple(int(part) for part in text.split(",") if part.strip())
            case Kind.TEXT | Kind.BYTES | Kind.PRIORITY:
                return text


_UNESCAPED_COMMA = re.compile(r"(?<!\\),")


def _split_at_commas(text: str) -> list[str]:
    """Returns the parts, stripped; a comma within one is written with a backslash before it."""
    return [part.strip().replace("\\,", ",") for part in _UNESCAPED_COMMA.split(text)]


_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}

_EXPECTED = {
    Kind.TEXT: "text",
    Kind.INTEGER: "a whole number",
    Kind.NUMBER: "a number",
    Kind.SWITCH: "true or false",
    Kind.PATH: "a path",
    Kind.TEXTS: "a list of texts",
    Kind.INTEGERS: "a list of whole numbers",
    Kind.BYTES: "a size in bytes",
    Kind.PRIORITY: f"a whole number, or one of {', '.join(PRIORITIES)}",
}


def _is_kind(value: Any, kind: Kind) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case Kind.TEXT:
            return isinstance(value, str)
        case Kind.INTEGER:
            return is_integer
        case Kind.NUMBER:
            return is_integer or isinstance(value, float)
        case Kind.SWITCH:
            return isinstance(value, bool)
        case Kind.BYTES:
            return is_integer or isinstance(value, str)
        case Kind.PRIORITY:
            return is_integer or (isinstance(value, str) and _priority(value) is not None)
        case Kind.PATH:
            return isinstance(value, (str, os.PathLike))
        case Kind.TEXTS:
            return isinstance(value, str) or (
                isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            )
        case Kind.INTEGERS:
            return isinstance(value, (list, tuple, set, frozenset)) and all(
                _is_kind(v, Kind.INTEGER) for v in value
            )


def _priority(text: str) -> int | None:
    word = text.strip().lower()
    if word in PRIORITIES:
        return PRIORITIES[word]
    return int(word) if re.fullmatch(r"[+-]?\d{1,9}", word) else None


def _normal(value: Any, kind: Kind, source: str) -> Any:
    match kind:
        case Kind.PRIORITY:
            return _priority(value) if isinstance(value, str) else value
        case Kind.BYTES:
            try:
                return parse_bytes(str(value))
            except InvalidOption as error:
                raise InvalidOption(
                    f"{source} is {value!r}", why=error.why, fix=error.fix
                ) from None
        case Kind.PATH:
            return Path(value).expanduser()
        case Kind.TEXTS:
            return (value,) if isinstance(value, str) else tuple(value)
        case Kind.INTEGERS:
            return tuple(value)
        case _:
            return value


M, R = Scope.MODEL, Scope.REQUEST

OPTIONS: tuple[Option, ...] = (
    Option("backend", M, Kind.TEXT, "auto", "Which runtime computes the steps.", "--backend",
           choices=("auto", "ort", "reference")),
    Option("ep", M, Kind.TEXTS, (), "Execution providers in order of preference, each as "
           "NAME|option=value|... or plugin:PATH|device=CPU|opt.option=value|...; the package's "
           "own or the CPU if not given.", "--ep", reads=parse_provider),
    Option("ep_fallback", M, Kind.SWITCH, False, "Go on, with a warning, when a provider is "
           "missing, does not load or takes no part of the model.", "--ep-fallback"),
    Option("threads", M, Kind.INTEGER, None, "Compute threads; all processors that this process "
           "may use if not given.", "--threads", minimum=1),
    Option("max_rows", M, Kind.INTEGER, 8, "Most requests that run at once.", "--max-rows",
           minimum=1),
    Option("max_context", M, Kind.INTEGER, None, "Most tokens of prompt and reply together; the "
           "model's own limit if not given.", "--max-context", minimum=2),
    Option("memory_budget", M, Kind.BYTES, None, "Most memory that running requests take together, "
           "beside the weights, as 4GB or 512MiB; what is free after loading less a margin if not "
           "given.", "--memory-budget"),
    Option("prefill_tokens", M, Kind.INTEGER, 512, "Most prompt tokens computed in one step.",
           "--prefill-tokens", minimum=2),
    Option("prefill_stretch", M, Kind.NUMBER, 3.0, "How many times longer, by prediction, a prompt "
           "may make a step in which others generate; 0 for no bound.", "--prefill-stretch",
           minimum=0),
    Option("queue_policy", M, Kind.TEXT, "priority", "Who runs next: by arrival, by priority, or "
           "the client that was served least.", "--queue-policy",
           choices=("first_come", "priority", "fair")),
    Option("max_queue", M, Kind.INTEGER, 1024, "Most requests that wait while no row is free; more "
           "are refused.", "--max-queue", minimum=0),
    Option("preemption", M, Kind.TEXT, "auto", "What becomes of the state of a request that makes "
           "room for another: copied aside, computed again, or whichever is faster.",
           "--preemption", choices=("auto", "swap", "replay")),
    Option("precision", M, Kind.TEXT, "keep", "How the weights of a GGUF file are held: as they "
           "are, or converted.", "--precision", choices=("keep", "fp32", "int8", "int4")),
    Option("variant", M, Kind.TEXT, None, "Which of a package's variants, precisions or graph "
           "files to take; chosen by the package and the providers if not given.", "--variant"),
    Option("chat_template", M, Kind.TEXT, None, "The chat template to use: the name of one of the "
           "package's templates, or a file; the package's own if not given.", "--chat-template"),
    Option("lossy", M, Kind.SWITCH, False, "Go on without fields of a package that would change "
           "the output and are not executed; `show` lists each.", "--lossy"),
    Option("revision", M, Kind.TEXT, None, "Branch, tag or commit of a hub repository.",
           "--revision"),
    Option("files", M, Kind.TEXTS, (), "Which files of a hub repository to fetch, as patterns.",
           "--files"),
    Option("offline", M, Kind.SWITCH, False, "Use only what is in the cache.", "--offline"),
    Option("cache_dir", M, Kind.PATH, None, "Where downloads, imported models and rewritten graphs "
           "are kept; the user's cache directory if not given.", "--cache-dir"),
    Option("state_dir", M, Kind.PATH, None, "Where sessions are kept beyond the process."),
    Option("max_tokens", R, Kind.INTEGER, None, "Most tokens to generate; up to the model's "
           "context if not given.", "--max-tokens", "max_tokens", minimum=1),
    Option("temperature", R, Kind.NUMBER, None, "Divides the logits; 0 always takes the best "
           "token. The package's default if not given, else 1.", "--temperature", "temperature",
           minimum=0),
    Option("top_k", R, Kind.INTEGER, None, "Draw from the k best tokens; 0 from all.", "--top-k",
           "top_k", minimum=0),
    Option("top_p", R, Kind.NUMBER, None, "Draw from the smallest set of tokens with this "
           "probability.", "--top-p", "top_p", minimum=0),
    Option("min_p", R, Kind.NUMBER, None, "Draw from tokens with at least this share of the best "
           "one's probability.", "--min-p", "min_p", minimum=0),
    Option("seed", R, Kind.INTEGER, None, "Makes the draw repeatable.", "--seed", "seed"),
    Option("stop", R, Kind.TEXTS, (), "Stop where this text appears; may be given several times.",
           "--stop", "stop"),
    Option("stop_token_ids", R, Kind.INTEGERS, (), "Stop at one of these token ids.",
           "--stop-token-id", "stop_token_ids"),
    Option("include_stop", R, Kind.SWITCH, False, "Show the stop text, too.", "--include-stop",
           "include_stop_str_in_output"),
    Option("ignore_eos", R, Kind.SWITCH, False, "Go on after an end-of-text token.",
           "--ignore-eos", "ignore_eos"),
    Option("timeout", R, Kind.NUMBER, None, "Seconds after which the request ends with what there "
           "is.", "--timeout", "timeout", minimum=0),
    Option("priority", R, Kind.PRIORITY, 0, "Higher goes first, where queue_policy is priority: a "
           "whole number, or low, normal, high for -10, 0, 10.", "--priority", "priority"),
    Option("client", R, Kind.TEXT, "", "Whose fair share the request takes, where queue_policy is "
           "fair.", "--client", "user"),
    Option("allow_control_tokens", R, Kind.SWITCH, False, "Let special tokens inside messages act "
           "as such.", "--allow-control-tokens", "allow_control_tokens"),
)  # fmt: skip

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}


def options_of(scope: Scope) -> tuple[Option, ...]:
    """Returns the rows of one scope, in the table's order."""
    return tuple(option for option in OPTIONS if option.scope is scope)


def resolve(
    scope: Scope,
    given: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a value for every option of the scope.

    Args:
        scope: which rows.
        given: what the caller gave, by Python name; None counts as not given.
        environ: environment variables; None takes the process's.
        file: the configuration file's "model" section; None takes none.

    Raises:
        InvalidOption: an unknown name or an unusable value, with where it came from.
    """
    environ = os.environ if environ is None else environ
    rows = options_of(scope)
    unknown = sorted({*given} - {row.name for row in rows})
    if unknown:
        raise InvalidOption(
            f"there is no option {unknown[0]!r} for a {scope.value}",
            why=f"there are {', '.join(row.name for row in rows)}",
        )
    return {row.name: _value(row, given, environ, file or {}) for row in rows}


def _value(
    row: Option, given: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any]
) -> Any:
    if given.get(row.name) is not None:
        return row.check(given[row.name], row.name)
    if row.env and environ.get(row.env):
        return row.parse(environ[row.env], row.env)
    if row.toml and row.name in file:
        return row.check(file[row.name], f"{row.toml} in the configuration file")
    return row.default


def config_file(environ: Mapping[str, str]) -> Path:
    """Returns where the configuration file is looked for: TOKENMILL_CONFIG, or the user's own."""
    if environ.get("TOKENMILL_CONFIG"):
        return Path(environ["TOKENMILL_CONFIG"]).expanduser()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "tokenmill" / "config.toml"


def read_config_file(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns the "model" section of the configuration file; empty where there is none.

    Raises:
        InvalidOption: the file was named but is not there, is not TOML, or has an unknown key.
    """
    path = config_file(environ)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if environ.get("TOKENMILL_CONFIG"):
            raise InvalidOption(
                f"TOKENMILL_CONFIG is {path}", why="there is no such file"
            ) from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidOption(f"{path} cannot be read", why=str(error)) from None
    known = {row.name for row in options_of(Scope.MODEL)}
    section = document.get("model", {})
    strange = [key for key in document if key != "model"]
    strange += [f"model.{key}" for key in section if key not in known]
    if strange:
        raise InvalidOption(
            f"{path} has the unknown key {strange[0]!r}",
            why=f"[model] may have {', '.join(sorted(known))}",
        )
    return dict(section)
