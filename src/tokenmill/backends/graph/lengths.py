"""At which lengths of a text a graph is looked at: where it could begin to compute another thing.

What depends on a length compares it with numbers that are in the graph, so it is looked at around
each of them, beside lengths that are spread over the whole context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tokenmill.backends.graph.masks import Case

_MAX_VALUES = 16
"""A constant with more elements is a weight."""
_SPREAD = 8
"""Lengths at equal distances."""
_DENSELY, _MAX_SPREAD = 512, 32
"""The distance of lengths beyond those at which all is looked at, and the most of them."""
_MAX_COMPUTED = 256
"""Most lengths that are computed from two constants."""
_NUMBERS = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT32,
    TensorProto.INT64,
}


def constants_of(graph: GraphProto) -> set[int]:
    """Returns the whole numbers above 1 that are constants of the graph itself."""
    found: list[float] = []
    tensors = list(graph.initializer)
    for node in graph.node:
        if node.op_type != "Constant":
            continue
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, TensorProto):
                tensors.append(value)
            elif attribute.name != "value_string":
                found.extend(np.ravel(value).tolist() if attribute.name[:6] == "value_" else ())
    for tensor in tensors:
        is_small = prod(tensor.dims) <= _MAX_VALUES and tensor.data_type in _NUMBERS
        if is_small and tensor.data_location != TensorProto.EXTERNAL:
            found.extend(numpy_helper.to_array(tensor).ravel().tolist())
    numbers = (value for value in found if isinstance(value, int | float))
    return {int(value) for value in numbers if 1 < value < 2**31 and value == int(value)}


def places(constants: Iterable[int], context: int) -> list[Case]:
    """Returns single rows of a few tokens that end around each of the places.

    Args:
        constants: see `constants_of`.
        context: the most tokens in a row.
    """
    ends = {context}
    ends.update(2**power for power in range(2, context.bit_length()))
    ends.update(context * number // _SPREAD for number in range(1, _SPREAD))
    for constant in constants:
        ends.update((constant, constant + 1, constant + 2))
    # Two new tokens, so that a mask of blocks is not taken for a window.
    return [Case(1, 2, end - 2) for end in sorted(ends) if 2 < end <= context]


def computed_places(constants: Iterable[int], start: int, stop: int) -> list[Case]:
    """Returns the same around what is computed of two constants, and spread more densely.

    Args:
        constants: see `constants_of`.
        start, stop: the lengths between which the places are.
    """
    ends = sorted({end for end in _computed(sorted(constants)) if start < end < stop})
    spread = range(start + _DENSELY, stop, max(_DENSELY, (stop - start) // _MAX_SPREAD))
    inside = sorted({*ends[:_MAX_COMPUTED], *spread})
    return [Case(1, min(4, stop - end + 2), end - 2) for end in inside]


def _computed(constants: list[int]) -> Iterator[int]:
    for number, a in enumerate(constants):
        for b in constants[number:]:
            yield from (a + b, b - a, a * b, b // a)


def blocks(stop: int, max_elements: int) -> Iterator[Case]:
    """Yields cases that together hold every query of a text, each with all tokens before it.

    Args:
        stop: the text's length.
        max_elements: most queries times tokens of a case.
    """
    past = 0
    while past < stop:
        # The most queries n for which n * (past + n) is within the limit.
        new = int((np.sqrt(past * past + 4 * max_elements) - past) / 2)
        new = max(1, min(new, stop - past))
        yield Case(1, new, past)
        past += new
