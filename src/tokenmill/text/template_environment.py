"""The Jinja environment that chat templates are written for.

Templates rely on what `transformers` gives them in `apply_chat_template`: white space trimmed
around blocks, `break` and `continue`, the `generation` tag, `raise_exception`, `strftime_now`,
`tojson` with JSON's own escapes only, and a sandbox. This is the same, with bounds on the work
that one expression can ask for.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, nodes
    from jinja2.parser import Parser

_MAX_REPEATED = 1_000_000
_MAX_EXPONENT = 1_000


class Refusal(Exception):
    """What a template says through `raise_exception`."""


class _Dict:
    """`dict` without its attributes, which a template could climb out by."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


@cache
def template_environment() -> Environment:
    """Returns the environment; Jinja is imported here, at the first use."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks what the assistant says; it shows its body."""

        tags = {"generation"}  # noqa: RUF012 - Jinja reads it from the class

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_show")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _show(self, caller: Any) -> Any:
            return caller()

    class PlainNamespace(Namespace):
        """A namespace without attributes that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                _check_attribute(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_attribute(name)
            super().__setitem__(name, value)

    def _check_attribute(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace takes no attribute {name!r}")

    class TemplateEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
                raise SecurityError(f"a power of {right} is too large")
            if operator == "*":
                for sequence, count in ((left, right), (right, left)):
                    if (
                        isinstance(sequence, str | list | tuple)
                        and isinstance(count, int)
                        and len(sequence) * count > _MAX_REPEATED
                    ):
                        raise SecurityError(f"repeating a value {count} times is too much")
            return super().call_binop(context, operator, left, right)

    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = PlainNamespace
    return environment
