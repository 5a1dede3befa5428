"""Policy components: graphs whose contract says what they do, so that we can do it ourselves."""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.metadata.workflow import PolicyContract, WorkflowComponent

SAMPLER = "onnx-genai.token-sampler"
TERMINATION = "onnx-genai.termination-predicate"
STATE_UPDATE = "onnx-genai.state-update"

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_BINDINGS: Mapping[tuple[str, str], tuple[frozenset[str], frozenset[str]]] = {
    (SAMPLER, "1"): (
        frozenset({"logits", "token"}),
        frozenset({*_SAMPLING, "grammar_mask", "rng_seed", "rng_offset", "rng_next_offset"}),
    ),
    (SAMPLER, "2"): (
        frozenset(
            {
                *("logits", "active", "done", *_SAMPLING),
                *("seed", "counter", "token", "next_counter"),
            }
        ),
        frozenset(),
    ),
    (TERMINATION, "1"): (
        frozenset({"tokens", "eos_ids", "iteration", "max_iterations", "done"}),
        frozenset(),
    ),
    (TERMINATION, "2"): (
        frozenset(
            {
                *("tokens", "eos_ids", "eos_lengths", "iteration", "max_iterations"),
                *("active", "done", "next_active", "continue"),
            }
        ),
        frozenset(),
    ),
    (STATE_UPDATE, "1"): (frozenset({"current", "update", "next"}), frozenset()),
    (STATE_UPDATE, "2"): (
        frozenset({"current", "update", "next", "active", "done"}),
        frozenset(),
    ),
}
"""Id and version to the bindings that a contract must have, and those that it may have."""
_MODES = ("greedy", "seeded_stochastic")
_ROWS = {"batching": "per_row", "inactive_rows": "preserve"}
_REASONS = {
    SAMPLER: "the sampler's contract says how it draws; this version draws itself",
    TERMINATION: "this version ends a text itself, at the same ids and lengths",
    STATE_UPDATE: "this version carries the tokens itself",
}


def check_policy(component: WorkflowComponent) -> str:
    """Checks that a component's contract is one that this version fulfils itself.

    Returns:
        The reason why the component's own graph is not run.

    Raises:
        InvalidPackage: bindings that the contract does not have, or lacks.
        UnsupportedModel: another contract, or parameters that change what it does.
    """
    contract = component.contract
    assert contract is not None, "only components with a contract are policies"
    known = _BINDINGS.get((contract.contract_id, contract.version))
    section = contract.section
    if known is None:
        raise UnsupportedModel(
            f"{section.file}: {section.path} is {contract.name}",
            why="this version does not know that contract",
        )
    needed, allowed = known
    bindings = section.section("bindings")
    for name in sorted(needed - contract.bindings.keys()):
        raise bindings.wrong(name, f"it is missing, and {contract.name} has it")
    for name in contract.bindings:
        if name not in needed | allowed:
            raise bindings.wrong(name, f"{contract.name} has no such binding")
    _check_parameters(contract)
    return _REASONS[contract.contract_id]


def is_greedy(component: WorkflowComponent) -> bool:
    """Returns whether a sampler always takes the best token."""
    return component.contract is not None and component.contract.parameters.get("mode") == "greedy"


def _check_parameters(contract: PolicyContract) -> None:
    section = contract.section.section("parameters")
    if "grammar_mask" in contract.bindings:
        raise UnsupportedModel(
            f"{section.file}: {contract.section.field('bindings')} has grammar_mask",
            why="this version takes no mask from a workflow",
        )
    for name, value in contract.parameters.items():
        is_mode = name == "mode" and contract.contract_id == SAMPLER
        if is_mode and value in _MODES:
            continue
        if not is_mode and _ROWS.get(name) == value:
            continue
        raise UnsupportedModel(
            f"{section.file}: {section.field(name)} is {value}",
            why=f"this version does not know what {contract.name} does then",
        )
