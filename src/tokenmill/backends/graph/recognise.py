"""What a layer's attention computes, found out by evaluating it on a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from tokenmill.backends.graph.evaluate import CannotEvaluate, Evaluation
from tokenmill.backends.graph.masks import Case, allowed, find_window
from tokenmill.backends.graph.ports import StatePorts
from tokenmill.backends.graph.shape_rules import Value
from tokenmill.backends.graph.site_mask import TOLERANCES, OperatorMask, PlainMask, SiteMask, grow
from tokenmill.backends.graph.sites import GraphIndex, Refused, Site

Floats = NDArray[Any]

_SMALL, _FAR = 0.125, 2.0**14
_TRIED = (0.0, _SMALL, 1.0, _FAR, -20.0, -3.0, 0.5, 7.0, 50.0)
"""Scores that a scale and a cap are found by."""

_MIXED_AGAIN = 512
"""Attention is computed once more over as many tokens, or fewer."""

_REORDERS = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"}


class Attention(NamedTuple):
    """What a layer's attention computes.

    Attributes:
        num_heads: of the queries.
        scale: of the scores.
        soft_cap: scores are capped to this by tanh; 0 for none.
        window: tokens that are looked back at, the token itself included; None for all.
        result: the tensor that the attention's result replaces.
        is_flat: the result is [batch, new, heads * dim]; else [batch, heads, new, dim].
        mask: what the window was seen in.
        seen_to: the longest text that it was looked at in, in tokens.
    """

    num_heads: int
    scale: float
    soft_cap: float
    window: int | None
    result: str
    is_flat: bool
    mask: SiteMask
    seen_to: int


class Cases(NamedTuple):
    """The graph evaluated for several inputs.

    Attributes:
        short: a few tokens; the first two have both past and several new ones.
        long: one row of as many tokens as there may be, then of fewer: the first that can be
            evaluated is used.
    """

    short: Sequence[tuple[Case, Evaluation]]
    long: Sequence[tuple[Case, Evaluation]]

    def telling(self, *sizes: int) -> tuple[Case, Evaluation]:
        """Returns a short case whose new tokens are not of these sizes, so that axes differ."""
        return next(one for one in self.short if one[0].new not in sizes)


def recognise(site: Site, layer: StatePorts, index: GraphIndex, cases: Cases) -> Attention:
    """Returns what the attention at a site computes.

    Raises:
        Refused: it is not causal attention of grouped heads, with or without a window.
        CannotEvaluate: what it computes cannot be found out.
    """
    case, evaluation = cases.short[0]
    num_heads = evaluation.get(site.query).size // (case.batch * case.new * layer.head_dim)
    case, evaluation = cases.telling(num_heads, layer.num_kv_heads)
    query = evaluation.get(site.query)
    dtype = query.dtype
    if str(dtype) not in TOLERANCES:
        raise Refused(f"it computes in {dtype}")
    _check_queries(site, layer, query.shape, case)
    parts = _Parts(case, num_heads, layer, dtype)
    if site.operator is None:
        found, mixed = _plain(site, evaluation, parts, query.shape, cases)
    else:
        found, mixed = _operator(site, site.operator, evaluation, parts, query.shape, cases)
    result, is_flat = _result(site, index, evaluation, parts, mixed)
    return Attention(
        num_heads,
        found.scale,
        found.soft_cap,
        found.window,
        result,
        is_flat,
        found.mask,
        found.seen_to,
    )


class _Found(NamedTuple):
    scale: float
    soft_cap: float
    window: int | None
    mask: SiteMask
    seen_to: int


class _Parts:
    """Random operands of one layer, and what attention makes of them."""

    def __init__(self, case: Case, num_heads: int, layer: StatePorts, dtype: np.dtype[Any]) -> None:
        rng = np.random.default_rng(0)
        self.case, self.num_heads, self.layer, self.dtype = case, num_heads, layer, dtype
        shape = case.batch, num_heads, case.new, layer.head_dim
        self.query = rng.standard_normal(shape).astype(dtype)
        shape = case.batch, layer.num_kv_heads, case.total, layer.head_dim
        self.key, self.value = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
        self.keys, self.values = (self.repeat(array) for array in (self.key, self.value))
        self.products = self.query.astype(np.float64) @ self.keys.swapaxes(2, 3)

    def repeat(self, array: Floats) -> NDArray[np.float64]:
        """Returns one head for each of the queries'."""
        times = self.num_heads // self.layer.num_kv_heads
        return np.repeat(array, times, axis=1).astype(np.float64)

    def attend(self, found: _Found) -> NDArray[np.float64]:
        """Returns [batch, heads, new, dim]."""
        scores = self.products * found.scale
        if found.soft_cap:
            scores = found.soft_cap * np.tanh(scores / found.soft_cap)
        scores = np.where(allowed(self.case, found.window), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True) @ self.values
        return mixed

    def flat(self, array: Floats) -> Floats:
        """Returns [batch, heads, tokens, dim] as [batch, tokens, heads * dim]."""
        batch, heads, tokens, dim = array.shape
        return array.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * dim)

    def close(self, array: Floats, wanted: Floats) -> bool:
        """Whether an array is the wanted one, but for rounding."""
        least = TOLERANCES[str(self.dtype)] * float(np.abs(wanted).max())
        return bool(array.shape == wanted.shape and np.all(np.abs(array - wanted) <= least))


def _check_queries(site: Site, layer: StatePorts, shape: tuple[int, ...], case: Case) -> None:
    width, rest = divmod(int(np.prod(shape)), case.batch * case.new)
    num_heads, odd = divmod(width, layer.head_dim)
    is_flat = site.operator is not None and shape == (case.batch, case.new, width)
    if rest or odd or num_heads % layer.num_kv_heads:
        raise Refused(f"its queries are {list(shape)} for heads of {layer.head_dim}")
    if not is_flat and shape[-2:] != (case.new, layer.head_dim):
        raise Refused(f"its queries are {list(shape)}, in another order")


def _plain(
    site: Site, evaluation: Evaluation, parts: _Parts, shape: tuple[int, ...], cases: Cases
) -> tuple[_Found, Floats]:
    """Recognises attention of single operators; returns the product with the values, too."""
    whole = evaluation.having(_operands(site, evaluation, parts, shape))
    scores = whole.known(site.scores)
    factor = _factor(scores, parts)
    slope, soft_cap = _slope(site, evaluation, scores, parts)
    mask = PlainMask(site, scores.shape[:-2], parts.case.batch, scores.dtype, slope, soft_cap)
    found = _Found(factor * slope, soft_cap, *_window(cases, mask))
    mixed, wanted = whole.known(site.mixed), parts.attend(found)
    if mixed.size != wanted.size or mixed.shape[-2:] != wanted.shape[-2:]:
        raise Refused(f"its result is {list(mixed.shape)}, in another order")
    if not parts.close(mixed, wanted.reshape(mixed.shape)):
        raise Refused("its softmax is not one over its scores alone")

    def check_mixed(case: Case, at: Evaluation) -> None:
        longer = _Parts(case, parts.num_heads, parts.layer, parts.dtype)
        shape = at.get(site.query).shape
        mixed = at.having(_operands(site, at, longer, shape)).known(site.mixed)
        if not longer.close(mixed, longer.attend(found).reshape(mixed.shape)):
            raise Refused("it computes something else in longer texts")

    _at_first([one for one in cases.long if one[0].total <= _MIXED_AGAIN], check_mixed)
    return found, mixed


def _operands(
    site: Site, evaluation: Evaluation, parts: _Parts, query_shape: tuple[int, ...]
) -> dict[str, Floats]:
    return {
        site.query: parts.query.reshape(query_shape),
        site.key: parts.key.astype(evaluation.get(site.key).dtype),
        site.value: parts.value.astype(evaluation.get(site.value).dtype),
    }


def _at_first(
    cases: Sequence[tuple[Case, Evaluation]], check: Callable[[Case, Evaluation], None]
) -> None:
    """Makes a check in the first case that can be evaluated, where there is one at all."""
    for number, (case, evaluation) in enumerate(cases):
        try:
            check(case, evaluation)
        except CannotEvaluate:
            # So many tokens do not fit into a table, or into memory: fewer may.
            if number == len(cases) - 1:
                raise
        else:
            return


def _factor(scores: Floats, parts: _Parts) -> float:
    """Returns the factor between the scores and the products of queries and repeated keys."""
    case = parts.case
    if scores.size != parts.products.size or scores.shape[-2:] != (case.new, case.total):
        raise Refused("its scores are not one for each query and token")
    products = parts.products.reshape(scores.shape)
    factor = float((scores * products).sum() / (products * products).sum())
    if factor <= 0 or not parts.close(scores, factor * products):
        raise Refused("its scores are not products of queries and repeated keys")
    return factor


def _slope(
    site: Site, evaluation: Evaluation, scores: Floats, parts: _Parts
) -> tuple[float, float]:
    """Returns the scale between scores and softmax, and the soft cap (0 for none)."""
    found = _answers(site, evaluation, scores, parts.case, _TRIED)
    tolerance = TOLERANCES[str(parts.dtype)]
    if found[0.0] != 0:
        raise Refused("it adds a bias to its scores")
    small, far = found[_SMALL] / _SMALL, found[_FAR]
    if not 0 < small < np.inf or not 0 < far < np.inf:
        raise Refused("its scores do not grow with the products")
    slope, soft_cap = small, 0.0
    if abs(far / _FAR / small - 1) > 2 * tolerance:
        soft_cap = far
        slope = float(np.arctanh(min(found[1.0] / far, 0.999))) * far
    if not grow(found, slope, soft_cap, parts.dtype):
        raise Refused("its scores are neither scaled nor capped by tanh")
    return slope, soft_cap


def _answers(
    site: Site, evaluation: Evaluation, scores: Floats, case: Case, tried: Sequence[float]
) -> dict[float, float]:
    """Returns what becomes of each score on its way to the softmax."""
    found: dict[float, float] = {}
    rows = scores.size // (case.new * case.total)
    # Each new token sees at least itself, in every head.
    places = [(row, i, case.past + i) for row in range(rows) for i in range(case.new)]
    for start in range(0, len(tried), len(places)):
        xs = tried[start : start + len(places)]
        filled = np.zeros((rows, case.new, case.total), scores.dtype)
        for place, x in zip(places, xs, strict=False):
            filled[place] = x
        feeds = {site.scores: filled.reshape(scores.shape)}
        answers = evaluation.having(feeds).known(site.weights)
        if answers.size != scores.size or answers.shape[-2:] != scores.shape[-2:]:
            raise Refused("its softmax is not one over its scores alone")
        out = answers.reshape(filled.shape)
        found.update((x, float(out[place])) for place, x in zip(places, xs, strict=False))
    return found


def _operator(
    site: Site,
    node: NodeProto,
    evaluation: Evaluation,
    parts: _Parts,
    shape: tuple[int, ...],
    cases: Cases,
) -> tuple[_Found, Floats]:
    """Recognises ONNX's Attention, with the past inside it or appended before."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    names = [*node.input, "", "", "", "", ""][:7]
    mask = OperatorMask.of(node)
    if len(node.output) > 3 and node.output[3]:
        raise Refused("its scores are an output")
    if names[6]:
        raise Refused("it is told the lengths of its rows")
    if len(shape) == 3 and attributes.get("q_num_heads") != parts.num_heads:
        raise Refused(f"its queries are {list(shape)}, in another order")
    factor = 1.0 if mask.has_past else _operand_factors(node, site, evaluation, parts)

    scale = attributes.get("scale") or 1 / np.sqrt(parts.layer.head_dim)

    def check_factor(case: Case, at: Evaluation) -> None:
        longer = _Parts(case, parts.num_heads, parts.layer, parts.dtype)
        again = _operand_factors(node, site, at, longer)
        if abs(again - factor) > TOLERANCES[str(parts.dtype)] * factor:
            raise Refused("it scales its keys in another way in longer texts")

    if not mask.has_past:
        _at_first([one for one in cases.long if one[0].total <= _MIXED_AGAIN], check_factor)
    soft_cap = float(attributes.get("softcap") or 0)
    found = _Found(float(scale) * factor, soft_cap, *_window(cases, mask))
    wanted = parts.attend(found)
    return found, parts.flat(wanted) if len(shape) == 3 else wanted


def _operand_factors(node: NodeProto, site: Site, evaluation: Evaluation, parts: _Parts) -> float:
    """Returns the factor that keys are scaled by on their way into the operator."""
    whole = evaluation.having(
        {
            site.key: parts.key.astype(evaluation.get(site.key).dtype),
            site.value: parts.value.astype(evaluation.get(site.value).dtype),
        }
    )
    key, value = whole.known(node.input[1]), whole.known(node.input[2])
    for wanted in (parts.repeat, lambda array: array):
        keys, values = (np.asarray(wanted(array)) for array in (parts.key, parts.value))
        if key.shape != keys.shape:
            keys, values = parts.flat(keys), parts.flat(values)
        if key.shape == keys.shape and value.shape == values.shape:
            factor = float((key * keys).sum() / (keys * keys).sum())
            if factor > 0 and parts.close(key, factor * keys) and parts.close(value, values):
                return factor
    raise Refused("its keys and values are not the state's")


def _window(cases: Cases, mask: SiteMask) -> tuple[int | None, SiteMask, int]:
    """Returns the mask's window, the mask, and the most tokens that it was seen with."""
    masks = [(case, mask.added(case, evaluation)) for case, evaluation in cases.short]
    _at_first(cases.long, lambda case, at: masks.append((case, mask.added(case, at))))
    return find_window(masks), mask, max(case.total for case, _ in masks)


def _result(
    site: Site, index: GraphIndex, evaluation: Evaluation, parts: _Parts, mixed: Floats
) -> tuple[str, bool]:
    """Follows the result to where it is [batch, new, heads * dim]."""
    case, width = parts.case, parts.num_heads * parts.layer.head_dim
    flat_shape = case.batch, case.new, width
    start = index.source(site.mixed)
    heads_first = mixed.reshape(case.batch, parts.num_heads, case.new, -1)
    flat = mixed if mixed.shape == flat_shape else parts.flat(heads_first)
    dtype = evaluation.get(site.query).dtype
    following = evaluation.having({start: mixed.astype(dtype)})
    name = start
    while True:
        value: Value = following.get(name)
        if value.shape == flat_shape and parts.close(following.known(name), flat):
            return name, True
        readers = index.readers[name]
        if len(readers) != 1 or readers[0].op_type not in _REORDERS:
            break
        if index.source(readers[0].input[0]) != name:
            break
        name = readers[0].output[0]
    if mixed.shape == (case.batch, parts.num_heads, case.new, parts.layer.head_dim):
        return start, False
    raise Refused(f"its result is {list(mixed.shape)}, in another order")
