"""Decode of a plain export: rewritten to shared buffers, against padded as it is.

Both run the same file in one process, one after the other: 8 sequences of 1,000 tokens, then one
token of each a step. Target: rewritten at least 3 times as fast.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from common import absent, arguments, finish, model_directory
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.core.rows import Logits, Row
from tokenmill.package.load import load_package
from tokenmill.package.model_package import ModelPackage, StateLayout

TARGET = 3.0
CHUNK = 250


def measure(backend: DecodeBackend, package: ModelPackage, rows: int, length: int, steps: int):
    """Returns seconds of each step after the first, and the last step's best tokens."""
    rng = np.random.default_rng(0)
    texts = rng.integers(0, package.vocab_size, (rows, length + steps + 1)).tolist()
    sequences = [backend.open() for _ in texts]
    for sequence, text in zip(sequences, texts, strict=True):
        for start in range(0, length, CHUNK):
            tokens = text[start : min(start + CHUNK, length)]
            backend.run([Row(sequence, tokens, logits=Logits.NONE)])
            backend.commit(sequence, len(tokens))
    seconds, best = [], []
    for step in range(steps + 1):
        batch = [
            Row(sequence, [text[length + step]], logits=Logits.LAST)
            for sequence, text in zip(sequences, texts, strict=True)
        ]
        began = time.perf_counter()
        result = backend.run(batch)
        for sequence in sequences:
            backend.commit(sequence, 1)
        seconds.append(time.perf_counter() - began)
        best = [int(output.logits[0].argmax()) for output in result.rows]
    return seconds[1:], best


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    package = load_package(model_directory(options.model))
    if package.state.layout is not StateLayout.PLAIN:
        absent(f"a plain export: the state of {options.model} is {package.state.layout.value}")
    steps = 8 if options.quick else 32
    with tempfile.TemporaryDirectory() as cache:
        config = BackendConfig(
            threads=options.threads,
            max_rows=options.rows,
            max_context=options.length + steps + 8,
            cache_dir=Path(cache),
        )
        began = time.perf_counter()
        shared = rewrite_decoder(package, config)
        took = time.perf_counter() - began
        for note in shared.notes:
            print(note)
        if not shared.shares_buffers:
            absent("a rewrite of this export")
        plain = rewrite_decoder(package, config, share_buffers=False)
        medians, tokens = {}, {}
        for name, kind, graph in (
            ("padded", PlainBackend, plain),
            ("rewritten", OrtBackend, shared),
        ):
            backend = kind(package, config, graph)
            seconds, tokens[name] = measure(backend, package, options.rows, options.length, steps)
            backend.shutdown()
            del backend
            medians[name] = statistics.median(seconds)
            low, high = min(seconds) * 1e3, max(seconds) * 1e3
            print(
                f"{name}: {medians[name] * 1e3:.1f} ms a step of {options.rows} rows of "
                f"{options.length} tokens ({low:.1f} to {high:.1f} in {steps} steps)"
            )
    ratio = medians["padded"] / medians["rewritten"]
    same = tokens["padded"] == tokens["rewritten"]
    print(f"{ratio:.2f} times as fast; best tokens {'equal' if same else 'differ'}")
    print(f"first load: {took:.1f} s to rewrite and compare, kept in the cache")
    missed = []
    if ratio < TARGET:
        missed.append(f"speed {ratio:.2f}, target {TARGET}")
    if not same:
        missed.append("the best tokens of the last step differ")
    figures = {name: seconds * 1e3 for name, seconds in medians.items()}
    finish(options, {**figures, "ratio": ratio, "rewrite_s": took}, missed)


if __name__ == "__main__":
    main()
