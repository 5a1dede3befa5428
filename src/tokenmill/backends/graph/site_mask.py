"""The mask of a layer's attention, at any place in a text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation
from tokenmill.backends.graph.masks import Case, allowed, check_mask, is_seen
from tokenmill.backends.graph.sites import Refused, Site

Floats = NDArray[Any]

TOLERANCES = {"float32": 1e-4, "float16": 2e-2}
"""Of a part's result, relative to its largest number."""

_TRIED = (1.0, 50.0)
"""Scores whose way to the softmax is looked at together with the mask."""


class SiteMask(Protocol):
    """What attention adds to its scores."""

    @property
    def target(self) -> str:
        """The tensor that shows it: what leads there decides about the mask."""

    @property
    def start(self) -> str:
        """The tensor that replaces the scores on the way to `target`; "" where there is none."""

    @property
    def form(self) -> Hashable:
        """What masks have in common that can be compared by how they are spelled."""

    def added(self, case: Case, at: Evaluation) -> Floats:
        """Returns what is added to scores of 0, [any, new, total].

        Raises:
            Refused: the mask is of another form.
            CannotEvaluate: it cannot be told.
        """

    def check(self, case: Case, at: Evaluation, window: int | None) -> None:
        """Raises `Refused` where mask or scores differ from what was recognised."""


class PlainMask(NamedTuple):
    """Between the scores of single operators and their softmax.

    Attributes:
        site: of the layer.
        lead: the sizes of the scores before their last two axes, in a case of `batch` rows.
        dtype: of the scores.
        slope, soft_cap: what becomes of a score on its way.
    """

    site: Site
    lead: tuple[int, ...]
    batch: int
    dtype: np.dtype[Any]
    slope: float
    soft_cap: float

    @property
    def target(self) -> str:
        """See `SiteMask.target`."""
        return self.site.weights

    @property
    def start(self) -> str:
        """See `SiteMask.start`."""
        return self.site.scores

    @property
    def form(self) -> Hashable:
        """See `SiteMask.form`."""
        return self.lead, self.batch, self.dtype

    def added(self, case: Case, at: Evaluation) -> Floats:
        """See `SiteMask.added`."""
        zeros = np.zeros((*self._lead(case), case.new, case.total), self.dtype)
        mask = at.having({self.site.scores: zeros}).known(self.site.weights)
        if mask.size != zeros.size or mask.shape[-2:] != zeros.shape[-2:]:
            raise Refused(f"its mask makes {list(mask.shape)} of {list(zeros.shape)} scores")
        return mask.reshape(-1, case.new, case.total)

    def check(self, case: Case, at: Evaluation, window: int | None) -> None:
        """See `SiteMask.check`."""
        queries = np.arange(case.new)
        # Each new token sees at least itself: there the mask adds nothing.
        own = queries, case.past + queries
        try:
            # All heads at once, where they are treated alike.
            found = self._way(case, at, (1,) * len(self.lead), own)
        except CannotEvaluate:
            found = self._way(case, at, self._lead(case), own)
        answers = found[:, *own]
        found[:, *own] = np.where(is_seen(answers), 0, answers)
        check_mask(case, found, window)
        for number, x in enumerate(_TRIED[: case.new]):
            of_x = answers[:, number :: len(_TRIED)]
            for answer in (of_x.min(), of_x.max()):
                if not grow({x: float(answer)}, self.slope, self.soft_cap, self.dtype):
                    raise Refused("it scales its scores in another way in longer texts")

    def _lead(self, case: Case) -> tuple[int, ...]:
        return (self.lead[0] // self.batch * case.batch, *self.lead[1:])

    def _way(
        self, case: Case, at: Evaluation, lead: tuple[int, ...], own: tuple[Any, Any]
    ) -> Floats:
        """Returns what becomes of scores that are 0 but for each token's own."""
        scores = np.zeros((*lead, case.new, case.total), self.dtype)
        scores[..., own[0], own[1]] = np.resize(np.array(_TRIED, self.dtype), case.new)
        found = at.having({self.site.scores: scores}).known(self.site.weights)
        if found.shape[-2:] != scores.shape[-2:]:
            raise CannotEvaluate("the way of its scores depends on the number of heads")
        return np.array(found.reshape(-1, case.new, case.total))


class OperatorMask(NamedTuple):
    """Inside ONNX's Attention.

    Attributes:
        target: the mask that it is given; "" for none.
        is_causal: it hides what comes later itself.
        has_past: and knows how many tokens came before; else it counts from the first query.
    """

    target: str
    is_causal: bool
    has_past: bool

    @classmethod
    def of(cls, node: NodeProto) -> OperatorMask:
        """Returns the mask of an operator."""
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        names = [*node.input, "", "", "", ""]
        return cls(names[3], bool(attributes.get("is_causal")), bool(names[4]))

    @property
    def start(self) -> str:
        """See `SiteMask.start`."""
        return ""

    @property
    def form(self) -> Hashable:
        """See `SiteMask.form`."""
        return self.is_causal, self.has_past

    def added(self, case: Case, at: Evaluation) -> Floats:
        """See `SiteMask.added`."""
        mask: Floats = np.zeros((1, case.new, case.total), np.float32)
        if self.target:
            given = at.known(self.target)
            if given.dtype == np.bool_:
                given = np.where(given, np.float32(0), np.float32(-np.inf))
            shape = given.shape[-2:]
            wide = (*given.shape[:-2], max(shape[0], case.new), shape[1])
            mask = np.broadcast_to(given, wide).reshape(-1, *wide[-2:])
            if mask.shape[-2:] != (case.new, case.total):
                raise Refused(f"its mask is {list(given.shape)}")
        if self.is_causal:
            seen = allowed(case if self.has_past else Case(case.batch, case.new, 0), None)
            causal = np.full((case.new, case.total), -np.inf, np.float32)
            causal[:, : seen.shape[1]][seen] = 0
            mask = mask + causal
        return mask

    def check(self, case: Case, at: Evaluation, window: int | None) -> None:
        """See `SiteMask.check`."""
        check_mask(case, self.added(case, at), window)


def grow(
    answers: Mapping[float, float], slope: float, soft_cap: float, dtype: np.dtype[Any]
) -> bool:
    """Whether scores are scaled by the slope, and capped by tanh.

    Args:
        answers: what becomes of each score.
        soft_cap: 0 for none.
        dtype: in which they are computed.
    """
    for x, answer in answers.items():
        wanted = slope * x
        if soft_cap:
            wanted = soft_cap * float(np.tanh(wanted / soft_cap))
        # NaN is not close.
        if not abs(answer - wanted) <= TOLERANCES[str(dtype)] * max(abs(wanted), slope):
            return False
    return True
