"""What the benchmarks share: options, the model, and how results are printed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tokenmill.core.errors import TokenmillError
from tokenmill.package.cache import Cache
from tokenmill.package.resolve import resolve_model

ABSENT = 3


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="what fits into a minute")
    parser.add_argument("--json", action="store_true", help="last line: one object of figures")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--model", default="smollm2", help="what to measure [default: smollm2]")
    return parser


def model_directory(model: str, precision: str = "keep") -> Path:
    """The model's directory; exits with 3 where it cannot be had."""
    try:
        return resolve_model(model, Cache.at(None), precision=precision)
    except TokenmillError as error:
        absent(f"the model {model}: {error}")


def prompt_ids(length: int, salt: int) -> list[int]:
    """Ids that differ from run to run, so that nothing can be reused."""
    return [1000 + (7919 * (i + 31 * salt)) % 40000 for i in range(length)]


def absent(what: str) -> Any:
    """Says what is missing and exits with 3."""
    print(f"absent: {what}", file=sys.stderr)
    sys.exit(ABSENT)


def finish(options: argparse.Namespace, figures: dict[str, Any], missed: list[str]) -> None:
    """Prints what was missed and the figures as asked, and exits."""
    for line in missed:
        print(f"missed: {line}")
    if options.json:
        print(json.dumps(figures))
    sys.exit(1 if missed and options.check else 0)
