"""Perplexity of the kept weights against the same weights in float32.

Targets: within 1 % on the fixed text in bench/perplexity.txt, windows of 1,000 tokens; other
exports of the same weights in full precision within 0.01 %.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from common import arguments, finish, model_directory
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.reference.forward import teacher_forced_logits
from tokenmill.backends.select import open_backend
from tokenmill.core.rows import Logits, Row
from tokenmill.package.cache import Cache
from tokenmill.package.load import load_package
from tokenmill.text.tokenizer import Tokenizer

TEXT = Path(__file__).with_name("perplexity.txt")
WINDOW = 1000


CHUNK = 256


def backend_logits(package):
    """Returns what computes logits [tokens, vocab] in chunks, on the backend that serves it."""
    backend = open_backend(package, BackendConfig(max_rows=1, cache_dir=Cache.at(None).graphs))

    def compute(ids: list[int]) -> np.ndarray:
        sequence = backend.open()
        parts = []
        for start in range(0, len(ids), CHUNK):
            tokens = ids[start : start + CHUNK]
            output = backend.run([Row(sequence, tokens, logits=Logits.ALL)]).rows[0]
            if output.error is not None:
                raise output.error
            parts.append(output.logits.copy())
            backend.commit(sequence, len(tokens))
        backend.close(sequence)
        return np.concatenate(parts)

    return compute


def log_likelihoods(compute, ids: list[int]) -> list[float]:
    logits = compute(ids).astype(np.float64)[:-1]
    peak = logits.max(axis=1)
    normaliser = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
    return list(logits[np.arange(len(ids) - 1), ids[1:]] - normaliser)


def perplexity(directory: Path, tokens: int, served: bool = False) -> tuple[float, int]:
    package = load_package(directory)
    compute = backend_logits(package) if served else partial(teacher_forced_logits, package)
    text = package.text
    tokenizer = Tokenizer.from_file(
        text.tokenizer_file,
        bos_token_id=text.bos_token_id,
        add_bos=text.add_bos,
        eos_token_ids=text.eos_token_ids,
        special_tokens=text.special_tokens,
    )
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:tokens]
    values = [
        value
        for start in range(0, len(ids) - 1, WINDOW)
        for value in log_likelihoods(compute, ids[start : start + WINDOW])
    ]
    return math.exp(-sum(values) / len(values)), len(values)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--precisions", nargs="*", default=["keep"], help="beside fp32")
    parser.add_argument(
        "--directories", nargs="*", default=[], type=Path,
        help="other exports of the same weights, in full precision",
    )  # fmt: skip
    options = parser.parse_args()
    tokens = 1000 if options.quick else 2000
    exact, count = perplexity(model_directory(options.model, "fp32"), tokens)
    print(f"fp32: {exact:.3f} on {count} tokens")
    figures = {"tokens": count, "fp32": exact}
    missed = []
    for precision in options.precisions:
        value, _ = perplexity(model_directory(options.model, precision), tokens)
        change = value / exact - 1
        print(f"{precision}: {value:.3f} ({change:+.2%})")
        figures |= {precision: value, f"{precision}_change": change}
        if precision == "keep" and abs(change) > 0.01:
            missed.append(f"keep is {change:+.2%} of fp32, the target is 1 %")
    for directory in options.directories:
        value, _ = perplexity(directory, tokens, served=True)
        change = value / exact - 1
        print(f"{directory.name}: {value:.4f} ({change:+.4%})")
        figures[f"{directory.name}_change"] = change
        if abs(change) > 1e-4:
            missed.append(f"{directory.name} is {change:+.4%} of fp32, the target is 0.01 %")
    finish(options, figures, missed)


if __name__ == "__main__":
    main()
