"""Runs requests on onnxruntime-genai in lock-step batches; see throughput.py.

Needs nothing of Tokenmill. A batch can only start when the one before is done; it takes all
requests that wait by then.
"""

from __future__ import annotations

import json
import sys
import time
from typing import NamedTuple

import numpy as np
import onnxruntime_genai as og


class Batch(NamedTuple):
    """When a batch had its first tokens and its last ones, and how many it gave."""

    first: float
    end: float
    tokens: int


def generate(model: og.Model, prompts: list[list[int]], tokens: int) -> Batch:
    length = len(prompts[0]) + tokens
    params = og.GeneratorParams(model)
    params.set_search_options(
        batch_size=len(prompts), max_length=length, min_length=length, do_sample=False
    )
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(prompts, dtype=np.int32))
    generator.generate_next_token()
    count = len(generator.get_next_tokens())
    first = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
        count += len(generator.get_next_tokens())
    return Batch(first, time.perf_counter(), count)


def answer(model: og.Model, prompts: list[list[int]], tokens: int, gap: float) -> dict:
    start = time.perf_counter()
    arrivals = [start + i * gap for i in range(len(prompts))]
    firsts: list[float] = []
    ends: list[float] = []
    count = 0
    while len(ends) < len(prompts):
        done = len(ends)
        time.sleep(max(0.0, arrivals[done] - time.perf_counter()))
        now = time.perf_counter()
        waiting = [i for i in range(done, len(prompts)) if arrivals[i] <= now]
        batch = generate(model, [prompts[i] for i in waiting], tokens)
        count += batch.tokens
        firsts += [batch.first - arrivals[i] for i in waiting]
        ends += [batch.end - arrivals[i] for i in waiting]
    return {
        "seconds": time.perf_counter() - start,
        "tokens": count,
        "firsts": firsts,
        "ends": ends,
        # Of the last batch, which is all there is where the requests came at once.
        "decode": (batch.tokens - len(waiting)) / (batch.end - batch.first),
    }


def main() -> None:
    directory, threads = sys.argv[1:]
    config = og.Config(directory)
    session = {"session_options": {"intra_op_num_threads": int(threads)}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = og.Model(config)
    print(json.dumps({"ready": f"onnxruntime-genai {og.__version__}"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
