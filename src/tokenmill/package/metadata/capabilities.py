"""Capabilities that a document asks for by name: which exist, and which are executed."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading

EXECUTED = frozenset(
    {
        "kv_cache",
        "grouped_query_attention",
        "multi_head_attention",
        "continuous_batching",
        "control_flow_loop",
        "workflow_ssa",
        "linear_effects",
        "serving_service_contract",
        "bounded_state_recurrence",
        "nested_control_flow",
        "loop_induction_values",
        "typed_emit",
        "emit_valid_length",
    }
)
KNOWN = EXECUTED | {
    "prefix_cache",
    "image_preprocessing_program",
    "packed_image_outputs",
    "position_program",
    "multi_axis_positions",
    "loop_carried_state",
    "dual_sequence_inputs",
    "parameter_adapters",
    "heterogeneous_adapter_batching",
    "session_state_lease",
    "advisory_state",
    "adaptive_proposal_budget",
    "grammar_guidance_adapter",
    "telemetry_adapter",
    "streaming_emit",
    "input_presence",
    "explicit_transfer",
}


def check_capabilities(reading: Reading, section: Section, name: str) -> frozenset[str]:
    """Returns the capabilities in a field.

    Raises:
        InvalidPackage: one that the format does not define.
        UnsupportedModel: some that are not executed; names them all.
    """
    asked = section.text_list(name)
    for index, capability in enumerate(asked):
        if capability not in KNOWN and not reading.lossy:
            raise section.wrong(
                f"{name}[{index}]",
                f"there is no capability {capability!r}",
                fix="Correct the name, or read the package lossily (--lossy)",
            )
    lacking = _in_order(capability for capability in asked if capability not in EXECUTED)
    if lacking and not reading.lossy:
        raise UnsupportedModel(
            f"{section.file}: {section.field(name)} asks for {', '.join(lacking)}",
            why="this version does not have these capabilities",
            fix="Read the package lossily (--lossy) to go on without them",
        )
    if lacking:
        reading.refuse(section, name, f"this version lacks {', '.join(lacking)}")
    return frozenset(asked)


def check_manifest(manifest: Section, declared: frozenset[str], used: Iterable[str]) -> None:
    """Checks that a workflow's manifest covers what the workflow uses.

    Raises:
        InvalidPackage: a capability is used and not declared.
    """
    missing = _in_order(capability for capability in used if capability not in declared)
    if missing:
        why = f"the workflow uses {', '.join(missing)}, and the list does not say so"
        raise manifest.wrong("capabilities", why)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
