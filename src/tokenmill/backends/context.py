"""How long a sequence may become."""

from __future__ import annotations

from tokenmill.package.model_package import ModelPackage


def context_of(package: ModelPackage, wanted: int | None = None) -> int:
    """Returns the most tokens of a sequence: what model, caches and caller allow.

    Args:
        package: with the model's context and, of a static cache, its capacity.
        wanted: what the caller asks for; None asks for all.
    """
    limits = (package.context_length, package.state.capacity, wanted)
    return min(limit for limit in limits if limit)
