"""A whole sequence in one forward, with an empty past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.context import context_of
from tokenmill.backends.ort.session import open_session, run_error
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import (
    AttentionState,
    ModelPackage,
    Port,
    Role,
    StateLayout,
)

_FED = {
    Role.INPUT_IDS,
    Role.ATTENTION_MASK,
    Role.POSITION_IDS,
    Role.WRITE_INDICES,
    Role.KV_LENGTHS,
    Role.USE_CACHE_BRANCH,
}


class WholeForward:
    """Calls a decoder with all tokens at once.

    Args:
        package: whose decoder the session runs, as the package has it.
        session: see `open_session`.

    Raises:
        UnsupportedModel: the graph wants an input that a decoder over token ids has no use for.
    """

    def __init__(self, package: ModelPackage, session: onnxruntime.InferenceSession) -> None:
        self._session, self._context_length = session, context_of(package)
        decoder = package.decoder
        self._logits = decoder.port(Role.LOGITS).name
        self._by_role: dict[Role, tuple[str, np.dtype[Any]]] = {}
        self._empty: dict[str, NDArray[Any]] = {}
        geometry = {layer.layer: layer for layer in package.state.attention}
        for binding in decoder.bindings:
            port, role = binding.port, binding.role
            if not port.is_input:
                continue
            if role in _FED:
                self._by_role[role] = port.name, np.dtype(port.dtype)
            elif role in (Role.PAST_KEY, Role.PAST_VALUE) and binding.layer in geometry:
                shape = _empty_shape(port, geometry[binding.layer], package)
                self._empty[port.name] = np.zeros(shape, geometry[binding.layer].dtype)
            else:
                raise UnsupportedModel(
                    f"the reference backend cannot feed the port {port.name!r}",
                    why=f"its role is {role.value}",
                )

    def __call__(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Returns float32 [n, vocab], the logits of every position.

        An odd number of tokens is computed beside one more that they cannot see: a query that is
        alone in its block sums in another order, and here a token's logits shall not depend on
        how many follow.

        Args:
            tokens: at least one.

        Raises:
            BackendError: the runtime failed.
        """
        fits = len(tokens) < self._context_length
        padded = [*tokens, 0] if len(tokens) % 2 and fits else list(tokens)
        ids = np.array([padded], np.int64)
        values = {
            Role.INPUT_IDS: ids,
            Role.ATTENTION_MASK: np.ones_like(ids),
            Role.POSITION_IDS: np.arange(ids.shape[1])[None],
            Role.WRITE_INDICES: np.zeros(1, np.int64),
            Role.KV_LENGTHS: np.full(1, ids.shape[1]),
            Role.USE_CACHE_BRANCH: np.zeros(1, np.bool_),
        }
        feeds = {name: values[role].astype(dtype) for role, (name, dtype) in self._by_role.items()}
        try:
            (logits,) = self._session.run([self._logits], feeds | self._empty)
        except Exception as error:
            raise run_error(error) from error
        whole: NDArray[np.float32] = logits[0, : len(tokens)].astype(np.float32, copy=False)
        return whole


def _empty_shape(port: Port, layer: AttentionState, package: ModelPackage) -> tuple[int, ...]:
    """Returns the shape of a past without tokens, or of a static cache, which has them all."""
    capacity = package.state.capacity or context_of(package)
    if package.state.layout is not StateLayout.STATIC_CACHE:
        return 1, layer.num_kv_heads, 0, layer.head_dim
    if len(port.shape) == 3:
        return 1, capacity, layer.num_kv_heads * layer.head_dim
    return 1, layer.num_kv_heads, capacity, layer.head_dim


def teacher_forced_logits(
    package: ModelPackage, ids: Sequence[int], config: BackendConfig | None = None
) -> NDArray[np.float32]:
    """Returns float32 [n, vocab]: row i is what follows the first i + 1 of the ids.

    Args:
        package: see `WholeForward`.
        ids: at least one token id.
        config: threads and providers; None takes the defaults.
    """
    return WholeForward(package, open_session(package, config or BackendConfig()))(ids)
