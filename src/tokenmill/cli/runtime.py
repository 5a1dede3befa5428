"""What `tokenmill show --load` adds: how the loaded model is run. See docs/show.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.backends.base import BackendReport


def load_and_report(directory: Path, model_options: Mapping[str, Any]) -> BackendReport:
    """Loads a model as a request would, and returns how its backend runs it.

    Raises:
        InvalidPackage: the package cannot work; the message names the place.
        InvalidOption: an option that cannot be met here, a provider for instance.
    """
    from tokenmill.api import engine_config
    from tokenmill.backends.select import open_backend
    from tokenmill.package.cache import Cache
    from tokenmill.package.load import load_package

    config = engine_config(model_options, Cache.at(model_options["cache_dir"]))
    package = load_package(directory, config.load_options)
    backend = open_backend(package, config.backend_config, config.backend)
    try:
        return backend.report()
    finally:
        backend.shutdown()


def runtime_section(report: BackendReport) -> dict[str, Any]:
    """Returns the report in types that JSON has; providers and operators keep their order."""
    return {
        "backend": report.backend,
        "layout": report.layout,
        "rewrites": list(report.rewrites),
        "claims": {name: dict(operators) for name, operators in report.claims.items()},
    }


def runtime_text(section: Mapping[str, Any]) -> str:
    """Returns the section as lines for people."""
    lines = [f"runtime: {section['backend']}", f"  state        {section['layout']}"]
    lines += [f"  rewrite      {rewrite}" for rewrite in section["rewrites"]]
    for name, operators in section["claims"].items():
        listed = ", ".join(f"{operator} x {count}" for operator, count in operators.items())
        nodes = sum(operators.values())
        lines.append(f"  {name:12} {f'{nodes} nodes: {listed}' if nodes else 'nothing'}")
    return "\n".join(lines)
