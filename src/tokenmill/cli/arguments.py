"""Command-line arguments made from the option table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.core.options import Kind, Option, Scope, options_of

_TYPES: dict[Kind, Any] = {
    Kind.TEXT: str | None,
    Kind.INTEGER: int | None,
    Kind.NUMBER: float | None,
    Kind.SWITCH: bool | None,
    Kind.PATH: Path | None,
    Kind.TEXTS: list[str] | None,
    Kind.INTEGERS: list[int] | None,
    Kind.BYTES: str | None,
    Kind.PRIORITY: str | None,
}

_PANELS = {Scope.MODEL: "Model", Scope.REQUEST: "Generation"}


def with_options(
    *scopes: Scope, only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a flag for every option of the scopes to a command.

    Args:
        *scopes: whose options.
        only: names of those that the command has a use for; None for all.

    The command is called with its own arguments and, for each scope, a dictionary of the values
    that were given: `model_options` and `request_options`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name not in {f"{scope.value}_options" for scope in scopes}
        ]
        rows = {
            scope: [row for row in options_of(scope) if _has_use(row, only)] for scope in scopes
        }

        def run(**arguments: Any) -> None:
            grouped = {
                f"{scope.value}_options": {
                    row.name: value
                    for row in rows[scope]
                    if (value := arguments.pop(row.name)) is not None
                }
                for scope in scopes
            }
            command(**arguments, **grouped)

        added = [_parameter(row) for scope in scopes for row in rows[scope]]
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
        return run

    return decorate


def _has_use(row: Option, only: Collection[str] | None) -> bool:
    return bool(row.flag) and (only is None or row.name in only)


def _parameter(row: Option) -> inspect.Parameter:
    is_switch = row.kind is Kind.SWITCH
    text = row.help
    if row.choices:
        text += f" One of {', '.join(row.choices)}."
    if not is_switch and row.default not in (None, ()):
        text += f" [default: {row.default}]"
    if row.env:
        text += f" [env: {row.env}]"
    declaration = f"{row.flag}/--no-{row.flag[2:]}" if is_switch else row.flag
    option = typer.Option(
        declaration, help=text, show_default=False, rich_help_panel=_PANELS[row.scope]
    )
    return inspect.Parameter(
        row.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_TYPES[row.kind], option],
    )
