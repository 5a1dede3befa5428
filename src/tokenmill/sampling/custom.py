"""The draw with a caller's own processors and sampler in it."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import CallbackError
from tokenmill.core.request import CustomSampler, LogitsProcessor
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.sampling.sampler import best_token, sample

_Called = Callable[[Sequence[int], NDArray[np.float32]], object]


def draw(
    logits: NDArray[np.float32],
    tokens: Sequence[int],
    *,
    processors: Sequence[LogitsProcessor] = (),
    sampler: CustomSampler | None = None,
    params: SamplingParams,
    choice: int = 0,
) -> int:
    """Picks the token that follows: processors in order, then the sampler or `sample`.

    Args:
        logits: float32 [vocab_size]; not modified. Each callable gets a copy of its own.
        tokens: all ids so far, prompt included; callables get them as a tuple.
        processors: each one's result goes to the next.
        sampler: picks in place of `params`; None leaves it to them.
        params: the request's parameters, with a seed unless greedy.
        choice: which of several outputs.

    Raises:
        BackendError: the model's best logit is not a finite number.
        CallbackError: a callable raised, or gave back what cannot be used.
    """
    position = len(tokens)
    if not processors and sampler is None:
        return sample(logits, params, position=position, choice=choice)
    best_token(logits, position)  # so that the model's fault is not laid on a callable
    seen, row = tuple(tokens), logits
    for processor in processors:
        row = _processed(processor, seen, row)
    if sampler is None:
        return sample(row, params, position=position, choice=choice)
    return _picked(sampler, seen, row)


def _processed(
    processor: LogitsProcessor, tokens: tuple[int, ...], row: NDArray[np.float32]
) -> NDArray[np.float32]:
    result = _call(processor, tokens, row)
    who = f"the logits processor {_name(processor)}"
    if type(result) is not np.ndarray:
        raise CallbackError(
            f"{who} returned {type(result).__name__}",
            why=f"a NumPy array of float32 [{len(row)}] is needed",
            fix="Return the row, also where it was changed in place",
        )
    if result.shape != row.shape or result.dtype != row.dtype:
        raise CallbackError(
            f"{who} returned {result.dtype} {list(result.shape)}",
            why=f"float32 [{len(row)}] is needed",
        )
    best = result[result.argmax()]
    if not np.isfinite(best):
        raise CallbackError(
            f"{who} left nothing to draw from",
            why=f"the best of {len(row)} logits is {best}",
            fix="Forbid tokens with -inf, leave one of them finite, and return neither inf nor nan",
        )
    return result


def _picked(sampler: CustomSampler, tokens: tuple[int, ...], row: NDArray[np.float32]) -> int:
    result = _call(sampler, tokens, row)
    who = f"the sampler {_name(sampler)}"
    if isinstance(result, bool) or not isinstance(result, (int, np.integer)):
        raise CallbackError(
            f"{who} returned {type(result).__name__}",
            why="a token id is needed, as an int",
            fix="Return int(...)",
        )
    token = int(result)
    if not 0 <= token < len(row):
        raise CallbackError(
            f"{who} returned {token}", why=f"the vocabulary has ids 0 to {len(row) - 1}"
        )
    return token


def _call(called: _Called, tokens: tuple[int, ...], row: NDArray[np.float32]) -> object:
    try:
        return called(tokens, row.copy())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in it ends the request, not the engine
        kind = type(error).__name__
        raise CallbackError(
            f"{_name(called)} failed{_place(error)}", why=f"{kind}: {_text(error)}"
        ) from error


def _name(called: _Called) -> str:
    if isinstance(called, functools.partial):
        called = called.func
    return getattr(called, "__qualname__", None) or type(called).__qualname__


def _place(error: BaseException) -> str:
    """Where the callable was when it failed; nothing for one that is not written in Python."""
    trace = error.__traceback__
    assert trace is not None, "the error was caught"
    if trace.tb_next is None:
        return ""
    inner = trace.tb_next
    return f" at {Path(inner.tb_frame.f_code.co_filename).name}:{inner.tb_lineno}"


def _text(error: BaseException) -> str:
    try:
        return textwrap.shorten(str(error), 500)
    except Exception:
        return "(the error has no text)"
