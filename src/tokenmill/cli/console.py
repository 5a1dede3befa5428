"""How the command line speaks: answers to stdout, everything else to stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.telemetry.memory import peak_resident_bytes
from tokenmill.telemetry.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenmill.core.errors import TokenmillError
    from tokenmill.core.events import Usage


def print_error(error: TokenmillError) -> None:
    """Writes an error as what, why and what to do, a line each."""
    print(f"error: {error.what}", file=sys.stderr)
    if error.why:
        print(f"  why: {error.why}", file=sys.stderr)
    if error.fix:
        print(f"  fix: {error.fix}", file=sys.stderr)


def note(text: str) -> None:
    """Writes a remark that is not part of the answer."""
    print(text, file=sys.stderr)


def statistics_line(timeline: Timeline, usage: Usage) -> str:
    """Returns counts, speeds and memory of a finished request in one line."""
    first, prefill, decode = (
        timeline.time_to_first_token,
        timeline.prefill_tokens_per_second,
        timeline.decode_tokens_per_second,
    )
    parts = [
        f"{usage.prompt_tokens} prompt + {usage.completion_tokens} completion tokens",
        "first token " + ("-" if first is None else f"{first * 1000:.0f} ms"),
        "prefill " + ("-" if prefill is None else f"{prefill:.0f} tokens/s"),
        "decode " + ("-" if decode is None else f"{decode:.0f} tokens/s"),
        f"peak memory {peak_resident_bytes() / 2**20:.0f} MiB",
    ]
    return ", ".join(parts)


@contextmanager
def patience(text: str, seconds: float = 2.0) -> Iterator[None]:
    """Says what takes long, on a terminal, where the body has not ended after so many seconds."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(seconds, note, [f"{text} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar on a terminal while the body runs; yields `report(what, done, total)`.

    The bar appears with the first report, so nothing is shown where there is nothing to wait for.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total or None)
        bar.update(tasks[what], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()
