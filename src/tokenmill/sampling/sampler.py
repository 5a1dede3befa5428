"""The draw: a row of logits and a request's parameters become one token."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import BackendError
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.sampling.filters import Candidates, min_p, top_k, top_p
from tokenmill.sampling.noise import gumbel_noise


def sample(
    logits: NDArray[np.float32], params: SamplingParams, *, position: int, choice: int = 0
) -> int:
    """Picks a token: the argmax of the filtered logits plus Gumbel noise.

    The order is temperature, top-k, top-p, min-p, draw. Adding Gumbel noise and taking the
    argmax draws from the softmax (Gumbel 1954; Maddison et al. 2014). Exact ties go to the
    lowest id.

    Args:
        logits: float32 [vocab_size]; not modified.
        params: the request's parameters, with a seed unless greedy.
        position: index in the sequence of the token that is being drawn, prompt included.
        choice: which of several outputs.

    Raises:
        BackendError: the best logit is not a finite number.
    """
    best = best_token(logits, position)
    if params.greedy:
        return best
    assert params.seed is not None, "prepare gives a seed to every request that draws"
    kept = _candidates(logits, params)
    noise = gumbel_noise(kept.ids, seed=params.seed, position=position, choice=choice)
    return int(kept.ids[(kept.logits + noise).argmax()])


def best_token(logits: NDArray[np.float32], position: int) -> int:
    """Returns the id of the best logit, the lowest one on a tie.

    Args:
        logits: float32 [vocab_size].
        position: for the message.

    Raises:
        BackendError: the best logit is not a finite number.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise BackendError(
            f"the logits at position {position} are not finite",
            why=f"the best of {len(logits)} is {logits[best]}",
            fix="The model or its weights are broken; run `tokenmill show` on it",
        )
    return best


def _candidates(logits: NDArray[np.float32], params: SamplingParams) -> Candidates:
    scaled = np.divide(logits, params.temperature, dtype=np.float64)
    candidates = Candidates(np.arange(len(logits), dtype=np.int64), scaled)
    candidates = top_k(candidates, params.top_k)
    candidates = top_p(candidates, params.top_p)
    return min_p(candidates, params.min_p)
