"""Many requests at once against onnxruntime-genai's lock-step batch: same files and threads.

Prompts of equal length and replies of equal length, so that the lock-step batch wastes nothing.
Each engine runs in a process of its own; they take turns, case by case. A ratio is the median of
the rounds' ratios. Targets:

- decode tokens/s at 1, 4, 8 and 16 rows at least 0.97 of the peer's;
- 16 requests of 128 + 64 tokens at once: tokens/s at least 1.0 of the peer's;
- the same arriving one every 50 ms: at least 1.3; the peer starts a batch of all that wait as
  soon as the one before is done;
- of a step of 16 rows at most 1.5 ms are spent outside the backend's `run`.

The peer needs an environment with onnxruntime-genai: give its Python with --peer-python, or
install it beside Tokenmill.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from common import arguments, finish, model_directory, prompt_ids
from worker import Worker

ROWS = (1, 4, 8, 16)
MOST_ROWS = max(ROWS)
GAP_SECONDS = 0.05
LEAST_DECODE = 0.97
LEAST_AT_ONCE = 1.0
LEAST_ARRIVING = 1.3
MOST_OUTSIDE_SECONDS = 1.5e-3


class Case(NamedTuple):
    """So many requests of prompt and reply tokens, `gap` seconds apart."""

    requests: int
    prompt: int
    reply: int
    gap: float = 0.0


DECODE = {rows: Case(rows, 32, 96) for rows in ROWS}
"""Prompts short enough that all rows soon decode together, whatever an engine does with them."""
AT_ONCE = Case(MOST_ROWS, 128, 64)
ARRIVING = AT_ONCE._replace(gap=GAP_SECONDS)


class Pair(NamedTuple):
    """What both engines answered to one case in one round."""

    mine: dict[str, Any]
    peer: dict[str, Any]


def measure(ours: Worker, peer: Worker, cases: list[Case], rounds: int) -> dict[Case, list[Pair]]:
    found: dict[Case, list[Pair]] = {case: [] for case in cases}
    for turn in range(rounds + 1):
        # A round that does not count warms up.
        for number, case in enumerate(cases if turn else (DECODE[1], DECODE[MOST_ROWS])):
            salt = 100 * (turn * 10 + number)
            prompts = [prompt_ids(case.prompt, salt + i) for i in range(case.requests)]
            question = {"prompts": prompts, "tokens": case.reply, "gap": case.gap}
            order = (ours, peer) if (turn + number) % 2 == 0 else (peer, ours)
            answers = {worker: worker.ask(**question) for worker in order}
            for worker, answer in answers.items():
                if answer["tokens"] != case.requests * case.reply:
                    raise RuntimeError(f"{worker.name} gave {answer['tokens']} tokens to {case}")
            if case.gap == 0 and case is not AT_ONCE and "decode" not in answers[ours]:
                raise RuntimeError(f"{ours.name} never ran the {case.requests} rows together")
            if turn:
                found[case].append(Pair(answers[ours], answers[peer]))
                took = [f"{answers[worker]['seconds']:.2f} s" for worker in (ours, peer)]
                print(f"round {turn}, {case}: {', peer '.join(took)}", file=sys.stderr, flush=True)
    return found


def rate(answer: dict[str, Any]) -> float:
    """Generated tokens per second, from the first request to the last token."""
    return answer["tokens"] / answer["seconds"]


class Report:
    """Prints figures as they are found, keeps them, and says which targets they miss."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.missed: list[str] = []

    def compare(
        self,
        name: str,
        pairs: list[Pair],
        figure: Callable[[dict[str, Any]], float],
        *,
        unit: str = "tokens/s",
        target: float | None = None,
    ) -> None:
        """Takes one figure of each answer; the ratio is at least `target`, where there is one."""
        mine, theirs = [figure(pair.mine) for pair in pairs], [figure(pair.peer) for pair in pairs]
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        median, ratio = statistics.median(mine), statistics.median(ratios)
        print(
            f"{name}: {median:.4g} {unit}, peer {statistics.median(theirs):.4g}: "
            f"{ratio:.3f} of it ({min(ratios):.3f} to {max(ratios):.3f})"
        )
        key = name.replace(" ", "_")
        self.figures[key], self.figures[f"{key}_ratio"] = median, ratio
        if target is not None and ratio < target:
            self.missed.append(f"{name} is {ratio:.3f} of the peer, the target is {target}")

    def requests(self, name: str, pairs: list[Pair], target: float) -> None:
        """Takes the whole and, without a target, how long each request waited."""
        self.compare(name, pairs, rate, target=target)
        for key, words in (("firsts", "first token"), ("ends", "reply")):
            self.compare(
                f"{name} mean {words}",
                pairs,
                lambda answer, key=key: statistics.mean(answer[key]),
                unit="s",
            )

    def ceiling(self, at_once: list[Pair], arriving: list[Pair]) -> None:
        """Says what the ratio would be if requests that arrive took no longer than at once."""
        ratio = statistics.median(
            b.peer["seconds"] / a.mine["seconds"] for a, b in zip(at_once, arriving, strict=True)
        )
        print(f"arriving could be at most {ratio:.3f}: then it costs no more than at once")
        self.figures["arriving_ceiling_ratio"] = ratio

    def outside(self, pairs: list[Pair]) -> None:
        """Takes our own time in a step."""
        between, outside = (
            statistics.median(pair.mine[key] for pair in pairs) for key in ("between", "outside")
        )
        print(
            f"a step of {MOST_ROWS} rows: {between * 1e3:.2f} ms outside run, "
            f"{outside * 1e3:.2f} ms outside the runtime"
        )
        self.figures |= {"outside_run_seconds": between, "outside_runtime_seconds": outside}
        if between > MOST_OUTSIDE_SECONDS:
            self.missed.append(
                f"a step spends {between * 1e3:.2f} ms outside run, the target is "
                f"{MOST_OUTSIDE_SECONDS * 1e3}"
            )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0, help="0: 5, or 1 with --quick")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    directory, threads = str(model_directory(options.model)), str(options.threads)
    ours = Worker(sys.executable, "tokenmill_batch_worker.py", directory, threads, str(MOST_ROWS))
    peer = Worker(options.peer_python, "genai_batch_worker.py", directory, threads)
    print(
        f"{ours.name} against {peer.name}, {threads} threads, {rounds} rounds, "
        f"load before {os.getloadavg()[0]:.1f}"
    )
    row_counts = (1, MOST_ROWS) if options.quick else ROWS
    cases = [*(DECODE[rows] for rows in row_counts), AT_ONCE, ARRIVING]
    found = measure(ours, peer, cases, rounds)
    ours.close()
    peer.close()
    report = Report()
    for rows in row_counts:
        name, pairs = f"decode at {rows} rows", found[DECODE[rows]]
        report.compare(name, pairs, lambda answer: answer["decode"], target=LEAST_DECODE)
    report.requests("at once", found[AT_ONCE], LEAST_AT_ONCE)
    report.requests("arriving", found[ARRIVING], LEAST_ARRIVING)
    report.ceiling(found[AT_ONCE], found[ARRIVING])
    report.outside(found[DECODE[MOST_ROWS]])
    finish(options, report.figures, report.missed)


if __name__ == "__main__":
    main()
