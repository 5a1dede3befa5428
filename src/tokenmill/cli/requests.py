"""Requests that cannot run, refused before a model is loaded for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.api import build_request
from tokenmill.package.model_package import GenerationDefaults


def check_request(options: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` where an option of the scope REQUEST has a value of no use."""
    build_request("", options, GenerationDefaults())
