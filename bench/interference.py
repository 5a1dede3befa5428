"""What a long prompt does to streams that are running, and they to it.

Four streams decode; then a prompt of 4,000 tokens comes in. Targets: the 90th percentile of the
time between two tokens of a stream, from then until the prompt's first token, is at most 3.5
times the median before; that first token takes at most 2.5 times as long as alone. The same
without the bound on a step's length is shown beside.
"""

from __future__ import annotations

import statistics
import threading
import time

import tokenmill
from common import arguments, finish, model_directory, prompt_ids

STREAMS = 4
QUIET_TOKENS = 40


class Reader(threading.Thread):
    """Reads one stream and notes when its events came."""

    def __init__(self, llm: tokenmill.LLM, salt: int, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.stopping = False
        self._stream = llm.stream(
            prompt_ids(100, salt), max_tokens=max_tokens, temperature=0, ignore_eos=True
        )

    def run(self) -> None:
        for _ in self._stream:
            self.times.append(time.perf_counter())
            if self.stopping:
                break
        self._stream.close()


def first_token(llm: tokenmill.LLM, prompt: list[int]) -> float:
    start = time.perf_counter()
    for _ in llm.stream(prompt, max_tokens=1, temperature=0, ignore_eos=True):
        return time.perf_counter() - start
    raise AssertionError("a stream has events")


def gaps(readers: list[Reader], start: float, stop: float) -> list[float]:
    """Times between neighbouring events of each stream, those that end within the span."""
    return [
        b - a
        for reader in readers
        for a, b in zip(reader.times, reader.times[1:], strict=False)
        if start < b <= stop
    ]


def measure(directory: str, length: int, stretch: float, salt: int) -> dict[str, float]:
    options = {"max_rows": STREAMS + 1, "prefill_stretch": stretch}
    with tokenmill.LLM(directory, **options) as llm:
        alone = first_token(llm, prompt_ids(length, salt))
        readers = [Reader(llm, salt + 1 + i, 2000) for i in range(STREAMS)]
        for reader in readers:
            reader.start()
        while min(len(reader.times) for reader in readers) < QUIET_TOKENS:
            time.sleep(0.01)
        # The first few tokens are still beside the others' prompts.
        quiet_from = sorted(reader.times[10] for reader in readers)[-1]
        start = time.perf_counter()
        first = first_token(llm, prompt_ids(length, salt + 9))
        end = time.perf_counter()
        for reader in readers:
            reader.stopping = True
        for reader in readers:
            reader.join()
    quiet = statistics.median(gaps(readers, quiet_from, start))
    busy = sorted(gaps(readers, start, end))
    return {
        "alone": alone,
        "quiet": quiet,
        "p90": busy[int(0.9 * (len(busy) - 1))],
        "worst": busy[-1],
        "first": first,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--stretch", type=float, default=3.0, help="prefill_stretch [default: 3]")
    options = parser.parse_args()
    directory = str(model_directory(options.model))
    length = 1000 if options.quick else 4000
    bounded = measure(directory, length, options.stretch, 0)
    free = measure(directory, length, 0, 50)
    figures: dict[str, float] = {}
    for name, found in (("bounded", bounded), ("free", free)):
        inter, first = found["p90"] / found["quiet"], found["first"] / found["alone"]
        print(
            f"{name}: between tokens {found['quiet'] * 1e3:.1f} ms quiet, p90 "
            f"{found['p90'] * 1e3:.0f} ms ({inter:.2f}x), worst {found['worst'] * 1e3:.0f} ms; "
            f"first token of {length} {found['first']:.2f} s, alone {found['alone']:.2f} s "
            f"({first:.2f}x)"
        )
        figures[f"{name}_p90_ratio"], figures[f"{name}_first_ratio"] = inter, first
    missed = []
    if figures["bounded_p90_ratio"] > 3.5:
        missed.append(f"p90 is {figures['bounded_p90_ratio']:.2f} quiet medians, the target is 3.5")
    if figures["bounded_first_ratio"] > 2.5:
        missed.append(f"the first token takes {figures['bounded_first_ratio']:.2f} times as long")
    finish(options, figures, missed)


if __name__ == "__main__":
    main()
