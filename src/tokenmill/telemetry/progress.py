"""A bar for many prompts: how many are done, and how fast tokens come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def wants_progress(asked: bool | None, num_prompts: int) -> bool:
    """Returns whether to show a bar: as asked, else for several prompts on a terminal."""
    if asked is not None:
        return asked
    return num_prompts > 1 and sys.stderr.isatty()


@contextmanager
def prompt_progress(total: int, *, shown: bool) -> Iterator[Callable[[int, int], object]]:
    """Shows a bar on stderr while the body runs.

    Yields:
        `report(done, tokens)`: prompts that are done and tokens that came so far.
    """
    if not shown:
        yield lambda done, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total, speed=0.0)
        start = time.perf_counter()

        def report(done: int, tokens: int) -> None:
            speed = tokens / (time.perf_counter() - start)
            bar.update(task, completed=done, speed=speed)

        yield report
