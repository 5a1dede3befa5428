"""Tables of cosines and sines from which attention rotates queries and keys itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from tokenmill.backends.graph.cases import feeds
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.ports import DecoderPorts, StatePorts
from tokenmill.backends.graph.recognise import Cases
from tokenmill.backends.graph.rotary import Rotation, find_rotation, read_table
from tokenmill.backends.graph.sites import GraphIndex, Site

_PREFIX = "tokenmill.rotary"
_CLOSE = 1e-5
_SAME = 1e-6
_MAX_KEYS = 2**25
"""Most elements of keys that are rotated to read a table off them."""
_LAST = 3
"""Positions before the context's end whose rotation tells tables apart."""


class Folded(NamedTuple):
    """Attention that rotates by itself.

    Attributes:
        query, key: the tensors before their rotation.
        cos, sin: names of tables [context, width / 2].
        factor: of the scores, which was in the rotation of the queries.
    """

    query: str
    key: str
    cos: str
    sin: str
    is_interleaved: bool
    factor: float


class _Table(NamedTuple):
    last: NDArray[Any]
    cos: str
    sin: str


class RotaryTables:
    """Reads tables off a graph; layers that rotate alike share one.

    Attributes:
        constants: the tables made so far.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        ports: DecoderPorts,
        index: GraphIndex,
        cases: Cases,
    ) -> None:
        self.constants: list[TensorProto] = []
        self._evaluator, self._ports, self._index = evaluator, ports, index
        self._cases = cases
        self._tables: list[_Table] = []
        self._evaluations: dict[Case, Evaluation] = {}

    def fold(self, layer: StatePorts, site: Site, num_heads: int) -> Folded | None:
        """Returns how a layer's attention can rotate, or None where it cannot, or need not."""
        context, dim, kv_heads = self._ports.context_length, layer.head_dim, layer.num_kv_heads
        case, evaluation = self._cases.telling(num_heads, kv_heads)
        if context <= case.total + _LAST or context * kv_heads * dim > _MAX_KEYS:
            return None
        query, key = (
            find_rotation(name, heads, dim, self._index, case, evaluation)
            for name, heads in ((site.query, num_heads), (site.new_key, kv_heads))
        )
        if query is None or key is None:
            return None
        factor = _factor(query, key, dim)
        if factor is None:
            return None
        table = self._table(layer, site, key, case)
        if table is None or not self._holds_to_the_end(site, query, num_heads, dim, factor, table):
            return None
        return Folded(query.source, key.source, table.cos, table.sin, key.is_interleaved, factor)

    def _holds_to_the_end(
        self, site: Site, query: Rotation, heads: int, dim: int, factor: float, table: _Table
    ) -> bool:
        """Whether queries are rotated as keys are, and scaled by the same, late in a text too."""
        found = self._read(site.query, query, heads, dim, self._end())
        wanted = factor * table.last
        return found is not None and bool(
            np.abs(np.stack(found) - wanted).max() <= _CLOSE * np.abs(wanted).max()
        )

    def _end(self) -> Case:
        return Case(1, _LAST, self._ports.context_length - _LAST)

    def _table(self, layer: StatePorts, site: Site, key: Rotation, short: Case) -> _Table | None:
        context = self._ports.context_length
        sizes = layer.num_kv_heads, layer.head_dim
        end = self._read(site.new_key, key, *sizes, self._end())
        if end is None:
            return None
        last = np.stack(end)
        for table in self._tables:
            if table.last.shape == last.shape and np.abs(table.last - last).max() <= _SAME:
                return table
        whole = self._read(site.new_key, key, *sizes, Case(1, context, 0))
        if whole is None:
            return None
        cos, sin = whole
        early = slice(short.past, short.total)
        # A rotation that depends on the text's length has no table.
        pairs = ((cos[early], key.cos), (sin[early], key.sin), (np.stack(whole)[:, -_LAST:], last))
        if any(np.abs(a - b).max() > _CLOSE * max(1.0, np.abs(b).max()) for a, b in pairs):
            return None
        dtype = self._cases.short[0][1].get(site.new_key).dtype
        names = [f"{_PREFIX}.{kind}.{len(self._tables)}" for kind in ("cos", "sin")]
        for name, array in zip(names, whole, strict=True):
            self.constants.append(numpy_helper.from_array(array.astype(dtype), name))
        self._tables.append(_Table(last, *names))
        return self._tables[-1]

    def _read(
        self, name: str, rotation: Rotation, heads: int, dim: int, case: Case
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        if case not in self._evaluations:
            given = feeds(self._evaluator.graph, self._ports, case)
            self._evaluations[case] = Evaluation(self._evaluator, given)
        try:
            return read_table(name, rotation, heads, dim, case, self._evaluations[case])
        except CannotEvaluate:
            return None


def _factor(query: Rotation, key: Rotation, dim: int) -> float | None:
    """Returns the factor between the two rotations; None where it is not one number."""
    if (query.width, query.is_interleaved) != (key.width, key.is_interleaved):
        return None
    q, k = (np.concatenate([r.cos, r.sin]) for r in (query, key))
    factor = float((q * k).sum() / (k * k).sum())
    if np.abs(q - factor * k).max() > _CLOSE * np.abs(q).max():
        return None
    if key.width < dim and (
        abs(key.rest - 1) > _CLOSE or abs(query.rest - factor) > _CLOSE * factor
    ):
        return None
    return factor if factor > 0 else None
