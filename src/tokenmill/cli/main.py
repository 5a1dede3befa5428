"""The command line: `tokenmill COMMAND ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenmill.cli.arguments import with_options
from tokenmill.cli.console import note, patience, print_error, progress_bar, statistics_line
from tokenmill.core.errors import Cancelled, InvalidRequest, TokenmillError, mapping_of
from tokenmill.core.options import Scope, read_config_file, resolve

if TYPE_CHECKING:
    from tokenmill.api import LLM
    from tokenmill.core.events import Finish
    from tokenmill.package.cache import Cache

app = typer.Typer(
    name="tokenmill",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_INTERRUPTED = 130
"""What typer makes of a KeyboardInterrupt, without a word."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from tokenmill import __version__

        print(f"tokenmill {__version__}")
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Runs generative ONNX models."""


_MODEL_HELP = "A directory, a .gguf file, a catalogue name or a hub id (org/name)."
_FETCHING = ("ep", "precision", "variant", "revision", "files", "offline", "cache_dir")
"""Options that say which files of a model are fetched, and where to."""

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]


@app.command()
@with_options(Scope.MODEL, Scope.REQUEST)
def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="The text; '-' reads it from standard input.")],
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Without the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print speeds and memory.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline as Chrome/Perfetto JSON.")
    ] = None,
    trace_content: Annotated[
        bool,
        typer.Option("--trace-content", help="Put ids, seed and parameters into the trace, too."),
    ] = False,
    model_options: dict[str, Any],
    request_options: dict[str, Any],
) -> None:
    """Answer a prompt, through the chat template where the model has one."""
    from tokenmill.cli.requests import check_request
    from tokenmill.telemetry.chrome_trace import write_chrome_trace

    text = sys.stdin.read() if prompt == "-" else prompt
    if trace is not None and not trace.parent.is_dir():
        raise InvalidRequest(f"--trace {trace}", why=f"there is no directory {trace.parent}")
    check_request(request_options)
    with _load(model, model_options) as llm:
        request = _request(llm, text, request_options, raw=raw, system=system)
        stream = llm.submit(request)
        finish: Finish | None = None
        try:
            for event in stream:
                print(event.text, end="", flush=True)
                finish = event.finish
        except KeyboardInterrupt:
            stream.cancel()
            finish = next(event.finish for event in stream if event.finish is not None)
        print()
        assert finish is not None, "a stream ends with a finish"
        if trace is not None:
            write_chrome_trace(trace, [stream.timeline], content=trace_content)
        if stats:
            note(statistics_line(stream.timeline, finish.usage))
    if finish.reason.value in ("cancelled", "deadline"):
        raise Cancelled(f"the answer is incomplete: {finish.note}")


@app.command()
@with_options(Scope.MODEL, Scope.REQUEST)
def run(
    model: ModelArgument,
    *,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    model_options: dict[str, Any],
    request_options: dict[str, Any],
) -> None:
    """Chat with a model, a line at a time."""
    from tokenmill.cli.chat_loop import chat_loop
    from tokenmill.cli.requests import check_request

    check_request(request_options)
    with _load(model, model_options) as llm:
        if llm.has_chat_template:
            _warn_without_end(llm)
        chat_loop(llm, request_options, system)


@app.command()
@with_options(Scope.MODEL)
def show(
    model: ModelArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, see docs/show.md.")] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Load it, too, and show who runs what.")
    ] = False,
    model_options: dict[str, Any],
) -> None:
    """Show what a model is: ports and roles with reasons, state, template, defaults."""
    import json

    from tokenmill.cli.runtime import load_and_report, runtime_section, runtime_text
    from tokenmill.package.describe import describe, to_text
    from tokenmill.package.load import load_package
    from tokenmill.package.load_options import load_options

    directory, values = _find(model, model_options)
    description = describe(load_package(directory, load_options(values)))
    if load:
        description["runtime"] = runtime_section(load_and_report(directory, values))
    if as_json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
        return
    print(to_text(description))
    if load:
        print(runtime_text(description["runtime"]))


@app.command()
@with_options(Scope.MODEL)
def plan(
    model: ModelArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, see docs/memory.md.")] = False,
    model_options: dict[str, Any],
) -> None:
    """Load a model and tell how many requests of which length its memory holds."""
    import json

    from tokenmill.cli.plan import load_and_plan, plan_text

    section = load_and_plan(*_find(model, model_options))
    print(json.dumps(section, indent=2, ensure_ascii=False) if as_json else plan_text(section))


@app.command()
@with_options(Scope.MODEL, only=_FETCHING)
def pull(model: ModelArgument, *, model_options: dict[str, Any]) -> None:
    """Fetch a model from the catalogue or a hub, and make it ready to run."""
    _settings(model_options)[1].clean()
    note(f"{model} is ready in {_find(model, model_options)[0]}")


@app.command(name="import")
@with_options(Scope.MODEL, only=("precision", "cache_dir"))
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The file to import.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The directory to write; the cache if not given."),
    ] = None,
    model_options: dict[str, Any],
) -> None:
    """Turn a GGUF file into an onnxruntime-genai directory."""
    from tokenmill.package.resolve import import_file as import_into_cache

    values, cache = _settings(model_options)
    with progress_bar() as report:
        directory = import_into_cache(
            file, cache, output=output, precision=values["precision"], progress=report
        )
    print(directory)


@app.command(name="list")
@with_options(Scope.MODEL, only=("cache_dir",))
def list_models(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, see docs/models.md.")] = False,
    model_options: dict[str, Any],
) -> None:
    """List the models in the cache and those that the catalogue knows."""
    from tokenmill.cli.cache_commands import print_models

    print_models(_settings(model_options)[1], as_json=as_json)


@app.command(name="rm")
@with_options(Scope.MODEL, only=("cache_dir",))
def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names that `list` shows.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that is in the cache.")] = False,
    model_options: dict[str, Any],
) -> None:
    """Remove models from the cache, with everything that is kept under these names."""
    from tokenmill.cli.cache_commands import remove_models

    remove_models(_settings(model_options)[1], names or [], everything=everything)


def main() -> None:
    """Runs the command line and exits with the code of the error table."""
    sys.exit(run_command(lambda: app(prog_name="tokenmill")))


def run_command(command: Callable[[], object]) -> int:
    """Runs a command and returns its exit code; typed errors become messages."""
    try:
        command()
    except TokenmillError as error:
        print_error(error)
        return mapping_of(error).exit_code
    except KeyboardInterrupt:
        return _cancelled()
    except SystemExit as end:  # how typer ends, after it has spoken
        if end.code == _INTERRUPTED:
            return _cancelled()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _cancelled() -> int:
    note("cancelled")
    return mapping_of(Cancelled("")).exit_code


def _settings(model_options: dict[str, Any]) -> tuple[dict[str, Any], Cache]:
    from tokenmill.package.cache import Cache

    values = resolve(Scope.MODEL, model_options, file=read_config_file(os.environ))
    return values, Cache.at(values["cache_dir"])


def _find(model: str, model_options: dict[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    from tokenmill.package.resolve import resolve_with_options

    values, cache = _settings(model_options)
    with progress_bar() as report:
        return resolve_with_options(model, cache, values, report)


def _load(model: str, model_options: dict[str, Any]) -> LLM:
    directory, values = _find(model, model_options)
    from tokenmill.api import LLM

    with patience(f"loading {directory}; the first time, its graph is looked at and rewritten"):
        return LLM(directory, **{**model_options, "variant": values["variant"]})


def _warn_without_end(llm: LLM) -> None:
    if not llm.package.text.eos_token_ids:
        note(
            "warning: no file of the model says which token ends a reply: it goes on to "
            "--max-tokens, a --stop text or the end of the context"
        )


def _request(llm: LLM, text: str, options: dict[str, Any], *, raw: bool, system: str | None) -> Any:
    from tokenmill.api import build_request
    from tokenmill.core.request import Chat

    if raw or (not llm.has_chat_template and system is None):
        return build_request(text, options, llm.package.defaults)
    _warn_without_end(llm)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    allow = bool(options.get("allow_control_tokens"))
    chat = Chat(messages, allow_control_tokens=allow)
    return build_request(chat, options, llm.package.defaults)
