"""Runs generative ONNX models: one engine behind a command line and a library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenmill.api import LLM
    from tokenmill.async_llm import AsyncLLM
    from tokenmill.core.errors import TokenmillError
    from tokenmill.core.events import FinishReason, GenerateEvent, GenerateResult, Usage
    from tokenmill.core.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "FinishReason",
    "GenerateEvent",
    "GenerateResult",
    "SamplingParams",
    "TokenmillError",
    "Usage",
    "__version__",
]

_HOMES = {
    "LLM": "tokenmill.api",
    "AsyncLLM": "tokenmill.async_llm",
    "TokenmillError": "tokenmill.core.errors",
    "FinishReason": "tokenmill.core.events",
    "GenerateEvent": "tokenmill.core.events",
    "GenerateResult": "tokenmill.core.events",
    "Usage": "tokenmill.core.events",
    "SamplingParams": "tokenmill.core.sampling_params",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used, so that the command line starts quickly."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
