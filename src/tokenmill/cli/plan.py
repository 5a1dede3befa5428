"""What `tokenmill plan` tells: a loaded model's memory. See docs/memory.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenmill.core.byte_size import format_bytes
from tokenmill.core.options import BY_NAME

if TYPE_CHECKING:
    from tokenmill.engine.memory_plan import MemoryPlan

_MIB = 2**20


class Loading(NamedTuple):
    """What loading did to this process's memory, measured.

    Attributes:
        grown_bytes: that are resident since; None where the system does not say.
        peak_bytes: most that were more than before at any time; None where the process had
            more before, so that the system's record says nothing of it.
    """

    grown_bytes: int | None
    peak_bytes: int | None


def load_and_plan(directory: Path, model_options: Mapping[str, Any]) -> dict[str, Any]:
    """Loads a model as a request would, and returns its plan in types that JSON has.

    Raises:
        InvalidPackage: the package cannot work; the message names the place.
        InvalidOption: an option that cannot be met here, a provider for instance.
    """
    from tokenmill.api import engine_config
    from tokenmill.engine.memory_plan import plan_memory
    from tokenmill.engine.model import LoadedModel
    from tokenmill.package.cache import Cache
    from tokenmill.telemetry.memory import (
        available_memory,
        peak_resident_bytes,
        resident_bytes,
    )

    config = engine_config(model_options, Cache.at(model_options["cache_dir"]))
    before, peak_before = resident_bytes(), peak_resident_bytes()
    model = LoadedModel.load(directory, config)
    try:
        after, peak = resident_bytes(), peak_resident_bytes()
        loading = Loading(None, None)
        if before is not None and after is not None:
            # The kernel's record of the peak can lag behind by some pages.
            peak_grown = max(peak, after) - before if peak > peak_before else None
            loading = Loading(after - before, peak_grown)
        available = available_memory()
        capacity = model.capacity
        plan = plan_memory(
            capacity,
            model.limits.max_context,
            weights=model.package.decoder.weight_bytes,
            available=None if available is None else available.bytes,
            is_measured=config.memory_budget is None,
            can_add_rows=capacity.max_rows == config.backend_config.max_rows,
        )
    finally:
        model.close()
    bound = None if available is None else available.bound
    return plan_section(plan, loading, root=directory, bound=bound)


def plan_section(
    plan: MemoryPlan, loading: Loading, *, root: Path, bound: str | None
) -> dict[str, Any]:
    """Returns the plan as docs/memory.md lists it.

    Args:
        plan: what was computed.
        loading: what was measured.
        root: the model's directory.
        bound: what sets `plan.available`; see `telemetry.memory.AvailableMemory`.
    """
    from tokenmill.engine.memory_plan import knobs, margin_bytes

    return {
        "format": 1,
        "root": str(root),
        "weights": {
            "bytes": plan.weights,
            "grown_bytes": loading.grown_bytes,
            "peak_bytes": loading.peak_bytes,
        },
        "available": {"bytes": plan.available, "bound": bound},
        "budget": {
            "bytes": plan.total if plan.is_bounded else None,
            "is_measured": plan.is_measured,
            "spare_bytes": plan.spare,
            "margin_bytes": None if plan.available is None else margin_bytes(plan.available),
        },
        "requests": {
            "max_rows": plan.max_rows,
            "can_add_rows": plan.can_add_rows,
            "max_context": plan.max_context,
            "fixed_bytes": plan.fixed_bytes,
            "full_bytes": plan.full_bytes,
            "longest": plan.longest,
            "even_context": plan.even_context,
        },
        "fits": [
            {
                "tokens": fit.tokens,
                "bytes_each": fit.bytes_each,
                "bytes_per_token": round(fit.bytes_per_token, 1),
                "at_once": fit.at_once,
                "by_memory": fit.by_memory,
                "bound": fit.bound.value,
            }
            for fit in plan.fits
        ],
        "knobs": [knob._asdict() for knob in knobs(plan)],
    }


def plan_text(section: Mapping[str, Any]) -> str:
    """Returns the section as lines for people."""
    from tokenmill.engine.memory_plan import MOST_ROWS

    lines = [section["root"], *_memory_lines(section), ""]
    lines += [f"{'tokens':>9} {'a request':>12} {'a token':>12} {'at once':>9}  bound by"]
    for fit in section["fits"]:
        each, token = format_bytes(fit["bytes_each"]), format_bytes(round(fit["bytes_per_token"]))
        bound = fit["bound"]
        if bound == "rows":
            more = " and more" if fit["by_memory"] >= MOST_ROWS else ""
            bound += f" (memory: {fit['by_memory']:,}{more})"
        lines.append(f"{fit['tokens']:>9,} {each:>12} {token:>12} {fit['at_once']:>9,}  {bound}")
    lines += [*_request_lines(section["requests"]), "", "to fit more:"]
    lines += [f"  {_turn(knob):26} {knob['effect']}" for knob in section["knobs"]]
    if not section["knobs"]:
        spare = section["budget"]["spare_bytes"]
        too_much = spare is not None and spare < 0
        why = "more is promised than there is" if too_much else "the package allows no more at once"
        lines.append(f"  nothing: {why}")
    return "\n".join(lines)


def _memory_lines(section: Mapping[str, Any]) -> list[str]:
    weights, available, budget = section["weights"], section["available"], section["budget"]
    loading = []
    if weights["grown_bytes"] is not None:
        loading.append(f"loading took {format_bytes(weights['grown_bytes'])}")
    if weights["peak_bytes"] is not None:
        loading[0] += f", at most {format_bytes(weights['peak_bytes'])} on the way"
    rows = [("weights", weights["bytes"], "; ".join(["in their files", *loading]))]
    if available["bytes"] is not None:
        left = f"left to this process by {available['bound']}, the model being loaded"
        rows.append(("available", available["bytes"], left))
    origin = "measured, less a margin" if budget["is_measured"] else "as configured"
    if budget["bytes"] is None:
        return [*_aligned(rows), "  for requests  no bound: this system does not say what is free"]
    rows.append(("for requests", budget["bytes"], f"{origin}; see --memory-budget"))
    spare = budget["spare_bytes"]
    if spare is not None and spare >= 0:
        others = "steps, texts and other processes"
        is_little = not budget["is_measured"] and spare < budget["margin_bytes"]
        advised = f"{format_bytes(budget['margin_bytes'])} are advised for {others}"
        rows.append(("kept free", spare, advised if is_little else f"for {others}"))
    elif spare is not None:
        effect = "more than there is: the process may be ended for it; lower --memory-budget"
        rows.append(("too much", -spare, effect))
    return _aligned(rows)


def _aligned(rows: list[tuple[str, int, str]]) -> list[str]:
    return [f"  {name:12} {format_bytes(size):>11}  {about}" for name, size, about in rows]


def _request_lines(requests: Mapping[str, Any]) -> list[str]:
    lines = []
    if requests["fixed_bytes"]:
        fixed = format_bytes(requests["fixed_bytes"])
        lines.append(f"a request has {fixed} of state before its first token")
    if requests["longest"] < requests["max_context"]:
        lines.append(
            f"one request alone can have {requests['longest']:,} tokens of the context's "
            f"{requests['max_context']:,}"
        )
    return lines


def _turn(knob: Mapping[str, Any]) -> str:
    name, value = knob["name"], knob["value"]
    if name not in BY_NAME:
        return f"more {name}"
    if name == "precision":
        return "--precision or --variant"
    if name == "memory_budget":
        unit, size = ("MiB", _MIB) if value >= _MIB else ("KiB", 1024)
        return f"{BY_NAME[name].flag} {-(-value // size)}{unit}"
    return f"{BY_NAME[name].flag} {value}"
