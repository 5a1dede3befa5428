"""Which nodes of a session's graph each execution provider runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tokenmill.backends.ort.provider import short_name

RECORD_CLAIMS = "session.record_ep_graph_assignment_info"
"""The session configuration entry, "1", without which ONNX Runtime keeps no such record."""


def read_claims(session: Any) -> Mapping[str, Mapping[str, int]]:
    """Returns provider, in order of preference, to operator, most frequent first, to its nodes.

    Nodes are those of the graph after ONNX Runtime's own rewriting, before a provider compiles
    what it took into one. A provider that took nothing has an empty mapping.

    Args:
        session: an `InferenceSession` that was created with the entry `RECORD_CLAIMS`.
    """
    claims: dict[str, Counter[str]] = {short_name(name): Counter() for name in _providers(session)}
    for subgraph in session.get_provider_graph_assignment_info():
        operators = (node.op_type for node in subgraph.get_nodes())
        claims.setdefault(short_name(subgraph.ep_name), Counter()).update(operators)
    return {name: dict(operators.most_common()) for name, operators in claims.items()}


def _providers(session: Any) -> list[str]:
    names: list[str] = session.get_providers()
    return names
