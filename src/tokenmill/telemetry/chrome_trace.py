"""Timelines as a Chrome trace, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Format: "Trace Event Format", complete events ("ph": "X") with times in microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from tokenmill.telemetry.timeline import Timeline


def to_chrome_trace(timelines: Iterable[Timeline], *, content: bool = False) -> dict[str, object]:
    """Returns the trace document: one track a request, one event a span.

    Args:
        timelines: of finished requests.
        content: also put ids, seed and parameters into the request's event, enough to run it
            again. Off by default, since it reveals what was said.
    """
    events: list[dict[str, object]] = []
    process = os.getpid()
    for track, timeline in enumerate(timelines, start=1):
        end = timeline.end if timeline.end is not None else timeline.start
        common = {"pid": process, "tid": track, "cat": "tokenmill", "ph": "X"}
        name = {"name": f"request {timeline.request_id}"}
        events.append(
            {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": name}
        )
        args: dict[str, object] = {
            "request_id": timeline.request_id,
            "started_at": timeline.started_at,
        }
        if content:
            args.update(timeline.content)
        events.append(
            {
                **common,
                "name": "request",
                "ts": _microseconds(timeline.start),
                "dur": _microseconds(end - timeline.start),
                "args": args,
            }
        )
        events.extend(
            {
                **common,
                "name": span.name,
                "ts": _microseconds(span.start),
                "dur": _microseconds(span.seconds),
                "args": dict(span.counts),
            }
            for span in timeline.spans
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(path: Path, timelines: Iterable[Timeline], *, content: bool = False) -> None:
    """Writes the trace document as JSON, replacing the file as a whole."""
    document = json.dumps(to_chrome_trace(timelines, content=content), ensure_ascii=False)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(document + "\n", encoding="utf-8")
    temporary.replace(path)


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
