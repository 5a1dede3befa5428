"""How a backend is asked to run a package; made from the option table by the doors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.provider import Provider

__all__ = ["BackendConfig", "Provider"]


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What a backend needs to know beside the package.

    Attributes:
        threads: compute threads; None takes the processors that this process may use.
        providers: in order of preference; empty takes the package's, else the CPU.
        provider_fallback: go on with what is there where a provider is not; else an error.
        max_rows: most sequences open at once.
        max_context: most tokens a sequence may have; None takes the package's limit.
        cache_dir: where rewritten graphs are kept; None keeps them in memory only.
    """

    threads: int | None = None
    providers: tuple[Provider, ...] = ()
    provider_fallback: bool = False
    max_rows: int = 8
    max_context: int | None = None
    cache_dir: Path | None = None
