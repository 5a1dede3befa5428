"""Runs requests on Tokenmill, each handed over when it arrives; see throughput.py."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import tokenmill
from tokenmill.backends.base import DecodeBackend
from tokenmill.core.request import GenerateRequest, Limits, Stop
from tokenmill.core.rows import Row, StepResult
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine import model as engine_model


class Step(NamedTuple):
    """One call of the backend's `run`.

    Attributes:
        rows, tokens: of the step.
        start, end: of the call, `perf_counter` seconds.
        compute: seconds of it inside the runtime.
    """

    rows: int
    tokens: int
    start: float
    end: float
    compute: float


class StepLog:
    """Notes every step of the backend that is opened next."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._open = engine_model.open_backend
        engine_model.open_backend = self._open_and_watch

    def _open_and_watch(self, *args: Any) -> DecodeBackend:
        engine_model.open_backend = self._open
        backend = self._open(*args)
        run = backend.run

        def watched(rows: Sequence[Row]) -> StepResult:
            start = time.perf_counter()
            result = run(rows)
            end = time.perf_counter()
            tokens = sum(len(row.tokens) for row in rows)
            self.steps.append(Step(len(rows), tokens, start, end, result.timings.compute))
            return result

        backend.run = watched
        return backend


def decode_figures(steps: list[Step], rows: int) -> dict[str, float]:
    """Returns what neighbouring steps of one token in each of all the rows tell.

    "decode" is tokens per second from the end of a step to the end of the next; "between" the
    seconds from the end of `run` to its next start; "outside" those and the part of `run` that
    is not inside the runtime. Empty where there are no such steps.
    """
    pairs = [
        (a, b)
        for a, b in itertools.pairwise(steps)
        if a.rows == a.tokens == b.rows == b.tokens == rows
    ]
    if not pairs:
        return {}
    took = [b.end - a.end for a, b in pairs]
    between = [b.start - a.end for a, b in pairs]
    outside = [took - b.compute for took, (_, b) in zip(took, pairs, strict=True)]
    return {
        "decode": rows * len(pairs) / sum(took),
        "between": statistics.median(between),
        "outside": statistics.median(outside),
    }


def answer(
    llm: tokenmill.LLM, log: StepLog, prompts: list[list[int]], tokens: int, gap: float
) -> dict[str, Any]:
    requests = [
        GenerateRequest(
            prompt=prompt,
            sampling=SamplingParams(temperature=0),
            stop=Stop(ignore_eos=True),
            limits=Limits(max_tokens=tokens),
        )
        for prompt in prompts
    ]
    log.steps.clear()
    start = time.perf_counter()
    arrivals = [start + i * gap for i in range(len(prompts))]
    streams = []
    for request, arrival in zip(requests, arrivals, strict=True):
        time.sleep(max(0.0, arrival - time.perf_counter()))
        streams.append(llm.submit(request))
    results = [stream.result() for stream in streams]
    seconds = time.perf_counter() - start
    lines = [result.timeline for result in results]
    found: dict[str, Any] = {
        "seconds": seconds,
        "tokens": sum(len(result.token_ids) for result in results),
        "firsts": [line.first_token - at for line, at in zip(lines, arrivals, strict=True)],
        "ends": [line.end - at for line, at in zip(lines, arrivals, strict=True)],
    }
    return found if gap else found | decode_figures(log.steps, len(prompts))


def main() -> None:
    directory, threads, max_rows = sys.argv[1:]
    log = StepLog()
    with tokenmill.LLM(directory, threads=int(threads), max_rows=int(max_rows)) as llm:
        print(json.dumps({"ready": f"tokenmill {tokenmill.__version__}"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(llm, log, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
