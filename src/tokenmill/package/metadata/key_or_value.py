"""Which of a list of state ports are keys and which are values, where no field says it.

Keys and values have equal shapes, so a pair taken the wrong way round shows nowhere but in the
text. The operators that read a port decide, then its name; else lists hold key and value of each
layer in turn, as the writers of these documents do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.package.document import Section
from tokenmill.package.flow import Flow
from tokenmill.package.model_package import Role
from tokenmill.package.onnx_file import OnnxFile
from tokenmill.package.state_pairs import KEY, VALUE, find_pairs, half_by_name

HALVES = {
    KEY: (Role.PAST_KEY, Role.PRESENT_KEY),
    VALUE: (Role.PAST_VALUE, Role.PRESENT_VALUE),
}


def halves_of(section: Section, name: str, inputs: Sequence[str], graph: OnnxFile) -> list[str]:
    """Returns KEY or VALUE for each of a list of past ports.

    Raises:
        InvalidPackage: there are not as many keys as values; names the field.
    """
    read = {pair.past: pair.half for pair in find_pairs(Flow(graph))}
    halves = [
        read.get(port) or half_by_name(port) or (KEY, VALUE)[index % 2]
        for index, port in enumerate(inputs)
    ]
    keys = halves.count(KEY)
    if 2 * keys != len(halves):
        raise section.wrong(name, f"it has {keys} keys and {len(halves) - keys} values")
    return halves
