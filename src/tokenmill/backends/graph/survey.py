"""Masks looked at all over the context: one may be causal at its ends and not in its middle."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from tokenmill.backends.graph.cases import feeds
from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation, Evaluator
from tokenmill.backends.graph.lengths import blocks, computed_places, constants_of, places
from tokenmill.backends.graph.masks import Case
from tokenmill.backends.graph.ports import DecoderPorts
from tokenmill.backends.graph.recognise import Attention, Cases
from tokenmill.backends.graph.sites import Refused

WHOLE = 8192
"""Up to so many tokens every query is looked at with every token; beyond, those around the places
of `lengths`."""

_MAX_ELEMENTS = 2**21
"""Of a mask that is looked at at once."""

_MAX_VALUES = 64
"""A weight with more elements is known by its name only."""

_OF_SHAPES = {"Shape", "Size"}


def survey(
    layers: Sequence[Attention], evaluator: Evaluator, ports: DecoderPorts, cases: Cases
) -> None:
    """Compares the layers' masks, and how scores grow, with what was recognised.

    Layers whose masks are spelled alike are looked at once.

    Args:
        layers: in order.
        evaluator: of the graph.
        cases: tell which layers' sizes are alike.

    Raises:
        Refused: they differ somewhere in the context.
        CannotEvaluate: it cannot be told.
    """
    spellings = _Spellings(evaluator, cases)
    kinds: dict[Hashable, int] = {}
    for number, layer in enumerate(layers):
        kinds.setdefault(spellings.of(layer), number)
    limit = min(layer.seen_to for layer in layers)
    if limit > WHOLE and spellings.reads_table:
        raise Refused(f"its mask is read from a table, in texts of more than {WHOLE} tokens")
    for case in _cases(evaluator, limit):
        evaluation = Evaluation(evaluator, feeds(evaluator.graph, ports, case))
        for number in kinds.values():
            try:
                layers[number].mask.check(case, evaluation, layers[number].window)
            except (Refused, CannotEvaluate) as error:
                raise Refused(f"layer {number}: {error}, in texts of {case.total} tokens") from None


def _cases(evaluator: Evaluator, limit: int) -> Iterator[Case]:
    constants = constants_of(evaluator.graph)
    yield from places(constants, limit)
    yield from computed_places(constants, WHOLE, limit)
    yield from blocks(min(limit, WHOLE), _MAX_ELEMENTS)


class _Spellings:
    """Tells whether masks are computed by the same operators from the same.

    Attributes:
        reads_table: one of them reads a weight.
    """

    def __init__(self, evaluator: Evaluator, cases: Cases) -> None:
        self.reads_table = False
        self._evaluator = evaluator
        self._evaluations = [evaluation for _, evaluation in (*cases.short, *cases.long[:1])]
        # A number for each spelling: a tree of them would be told apart only by all its branches.
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[tuple[str, str], int] = {}

    def of(self, layer: Attention) -> Hashable:
        """Returns what is the same for masks that are spelled alike."""
        mask = layer.mask
        return mask.form, layer.window, self._spelled(mask.target, mask.start)

    def _spelled(self, name: str, start: str) -> int:
        if (name, start) not in self._known:
            spelling = self._spelling(name, start)
            self._known[name, start] = self._numbers.setdefault(spelling, len(self._numbers))
        return self._known[name, start]

    def _spelling(self, name: str, start: str) -> Hashable:
        if name in ("", start):
            return "none" if not name else "scores"
        if (weight := self._evaluator.weight(name)) is not None:
            if isinstance(weight, np.ndarray) and weight.size <= _MAX_VALUES:
                return weight.dtype.str, weight.shape, weight.tobytes()
            self.reads_table = True
            return name
        node = self._evaluator.made_by.get(name)
        if node is None:
            return name
        attributes = tuple(sorted(a.SerializeToString() for a in node.proto.attribute))
        head = node.proto.domain, node.proto.op_type, attributes, node.outputs.index(name)
        if node.proto.op_type in _OF_SHAPES:
            return *head, *(self._sizes(name, evaluation) for evaluation in self._evaluations)
        return *head, *(self._spelled(read, start) for read in node.inputs)

    @staticmethod
    def _sizes(name: str, evaluation: Evaluation) -> bytes | None:
        try:
            return evaluation.known(name).tobytes()
        except CannotEvaluate:
            return None
