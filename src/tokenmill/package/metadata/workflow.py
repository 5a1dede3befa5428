"""The section `pipeline.workflow`, parsed: values, components, state and the steps between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, one_of, required_text
from tokenmill.package.metadata.steps import Step, read_steps
from tokenmill.package.metadata.tensor_contract import check_contract

PORT_ROLES = (
    "token_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "logits",
    "hidden_states",
    "encoder_hidden_states",
    "audio_features",
)
_RUNTIME_ROLES = (
    "prompt_text",
    "prompt_tokens",
    "negative_prompt_text",
    "negative_prompt_tokens",
    "media",
    "max_iterations",
    "max_output_tokens",
    "seed",
    "guidance_scale",
    "width",
    "height",
    "denoising_strength",
    "sampling_temperature",
    "sampling_top_k",
    "sampling_top_p",
    "sampling_min_p",
    "constraint",
    "session_id",
    "row_selection",
    "adapter_segments",
    "adapter_counts",
    "adapter_scales",
    "adapter_active",
)
_OUTPUT_ROLES = ("tokens", "text", "image", "video", "audio", "tensor", "event")
_WORKFLOW = (
    "manifest",
    "inputs",
    "outputs",
    "components",
    "state",
    "effects",
    "serving",
    "steps",
)


@dataclass(frozen=True, slots=True)
class WorkflowInput:
    """A value from outside.

    Attributes:
        role: the runtime role, e.g. "prompt_tokens"; None where it is opaque.
        source: "request", "application", "literal" or "artifact".
        default: as it is written, or None.
        present_as: the name of a value that tells whether it was given, or None.
    """

    section: Section
    role: str | None
    source: str
    default: Any
    present_as: str | None


@dataclass(frozen=True, slots=True)
class PolicyContract:
    """What a component promises to do: an id, a version, and which port means what."""

    section: Section
    contract_id: str
    version: str
    bindings: Mapping[str, str]
    parameters: Mapping[str, str]

    @property
    def name(self) -> str:
        """The id and the version, e.g. "onnx-genai.token-sampler@2"."""
        return f"{self.contract_id}@{self.version}"


@dataclass(frozen=True, slots=True)
class WorkflowComponent:
    """Something that steps invoke.

    Attributes:
        kind: "onnx", "adapter" or "binding".
        implementation: the section that names its file.
        roles: port to role.
        contract: None where it promises nothing.
    """

    section: Section
    name: str
    kind: str
    implementation: Section
    roles: Mapping[str, str]
    contract: PolicyContract | None


@dataclass(frozen=True, slots=True)
class StateCell:
    """A value that is carried from step to step.

    Attributes:
        recurrence: "invariant", "growing" or "bounded".
        axis: that grows, or None.
        maximum: the value or number that bounds it, or None.
        group: the state service group that stores it, or None.
    """

    section: Section
    scope: str
    initializer: str
    recurrence: str
    axis: int | None
    maximum: str | int | None
    management: str
    group: str | None
    is_advisory: bool


@dataclass(frozen=True, slots=True)
class Workflow:
    """The whole section."""

    section: Section
    inputs: Mapping[str, WorkflowInput]
    outputs: Mapping[str, str]
    components: Mapping[str, WorkflowComponent]
    cells: Mapping[str, StateCell]
    serving: Section
    effects: tuple[str, ...]
    steps: tuple[Step, ...]

    def literal(self, value: str | int | None) -> int | None:
        """Returns a whole number that is written out, or is the default of an input."""
        if isinstance(value, str):
            found = self.inputs.get(value)
            value = found.default if found else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def is_request_input(self, name: str) -> bool:
        """Returns whether a request gives that input, and it has a runtime role."""
        found = self.inputs.get(name)
        return found is not None and found.source == "request" and found.role is not None


def read_workflow(reading: Reading, section: Section) -> Workflow:
    """Parses the section; what the parts mean together is checked later.

    Raises:
        InvalidPackage: a field that is not known, missing, or of another type.
    """
    reading.only(section, _WORKFLOW)
    effects = section.section("effects")
    if not section.children("steps"):
        raise section.wrong("steps", "there are none")
    return Workflow(
        section=section,
        inputs={n: _input(reading, s) for n, s in _entries(section, "inputs")},
        outputs={n: _output(reading, s) for n, s in _entries(section, "outputs")},
        components={n: _component(reading, n, s) for n, s in _entries(section, "components")},
        cells={n: _cell(reading, s) for n, s in _entries(section, "state")},
        serving=section.section("serving"),
        effects=effects.names(),
        steps=read_steps(reading, section, "steps"),
    )


def _entries(section: Section, name: str) -> list[tuple[str, Section]]:
    entries = section.section(name)
    return [(entry, entries.section(entry)) for entry in entries.names()]


def _contract(reading: Reading, section: Section) -> None:
    if "contract" not in section:
        raise section.wrong("contract", "it is missing")
    check_contract(reading, section.section("contract"))


def _input(reading: Reading, section: Section) -> WorkflowInput:
    reading.only(
        section,
        (
            "contract",
            "role",
            "source",
            "required",
            "default",
            "present_as",
            "externally_suppliable",
        ),
    )
    _contract(reading, section)
    role = section.section("role")
    reading.only(role, ("kind", "version", "role"))
    kind = one_of(role, "kind", ("runtime", "opaque"))
    if kind is None:
        raise role.wrong("kind", "it is missing")
    source = section.section("source")
    reading.only(source, ("kind", "name", "path"))
    origin = one_of(source, "kind", ("request", "application", "literal", "artifact"))
    if origin is None:
        raise source.wrong("kind", "it is missing")
    if origin == "literal" and section.raw("default") is None:
        raise section.wrong("default", "it is missing, and the source is a literal")
    return WorkflowInput(
        section,
        _runtime_role(role) if kind == "runtime" else None,
        origin,
        section.raw("default"),
        section.text("present_as"),
    )


def _runtime_role(section: Section) -> str:
    role = one_of(section, "role", _RUNTIME_ROLES)
    if role is None:
        raise section.wrong("role", "it is missing")
    return role


def _output(reading: Reading, section: Section) -> str:
    reading.only(section, ("contract", "role", "value_range", "stage", "media"))
    _contract(reading, section)
    role = one_of(section, "role", _OUTPUT_ROLES)
    if role is None:
        raise section.wrong("role", "it is missing")
    one_of(section, "stage", ("pre_adapter", "post_adapter"))
    return role


def _component(reading: Reading, name: str, section: Section) -> WorkflowComponent:
    reading.only(
        section,
        (
            "implementation",
            "ports",
            "contract",
            "application_overridable",
            "effects",
            "row_scope",
            "cache_affects_state",
        ),
    )
    implementation = section.section("implementation")
    reading.only(implementation, ("kind", "artifact", "abi", "version"))
    kind = one_of(implementation, "kind", ("onnx", "adapter", "binding"))
    if kind is None:
        raise implementation.wrong("kind", "it is missing")
    if kind == "onnx":
        required_text(implementation, "artifact")
    if section.raw("effects"):
        raise UnsupportedModel(
            f"{section.file}: {section.field('effects')} is {section.brief('effects')}",
            why="components with effects outside the workflow are not run",
        )
    ports = section.section("ports")
    reading.only(ports, ("inputs", "outputs", "roles"))
    roles = ports.section("roles")
    return WorkflowComponent(
        section,
        name,
        kind,
        implementation,
        {port: _role(roles, port) for port in roles.names()},
        _policy(reading, section.section("contract")) if "contract" in section else None,
    )


def _role(roles: Section, port: str) -> str:
    role = one_of(roles, port, PORT_ROLES)
    assert role is not None, "the names of a section are those of fields that are not null"
    return role


def _policy(reading: Reading, section: Section) -> PolicyContract:
    reading.only(section, ("id", "version", "equivalence", "bindings", "parameters"))
    one_of(section, "equivalence", ("bitwise", "distribution_preserving", "semantic"))
    bindings = section.section("bindings")
    return PolicyContract(
        section,
        required_text(section, "id"),
        required_text(section, "version"),
        {name: required_text(bindings, name) for name in bindings.names()},
        section.strings("parameters"),
    )


def _cell(reading: Reading, section: Section) -> StateCell:
    reading.only(
        section,
        (
            "contract",
            "class",
            "scope",
            "initializer",
            "recurrence",
            "management",
            "release_boundary",
            "service_group",
            "session",
        ),
    )
    if "contract" in section:
        check_contract(reading, section.section("contract"))
    recurrence = section.section("recurrence")
    reading.only(recurrence, ("kind", "axis", "increment", "max"))
    kind = one_of(recurrence, "kind", ("invariant", "growing", "bounded"))
    if kind is None:
        raise recurrence.wrong("kind", "it is missing")
    axis = recurrence.integer("axis", high=63)
    if kind != "invariant" and axis is None:
        raise recurrence.wrong("axis", "it is missing")
    maximum = recurrence.raw("max")
    if maximum is not None and not isinstance(maximum, (str, int)):
        raise recurrence.wrong("max", "it is neither a value's name nor a number")
    scope = one_of(section, "scope", ("invocation", "session"))
    if scope is None:
        raise section.wrong("scope", "it is missing")
    management = one_of(section, "management", ("workflow", "runtime", "external")) or "workflow"
    boundary = one_of(section, "release_boundary", ("invocation", "session", "row"))
    group = section.text("service_group")
    if group is not None and management != "runtime":
        raise section.wrong("management", f"the group {group!r} is the runtime's storage")
    if management != "workflow" and boundary is None:
        raise section.wrong("release_boundary", f"it is missing, and management is {management}")
    if management == "workflow" and boundary is not None:
        raise section.wrong("release_boundary", "the workflow itself owns the cell")
    return StateCell(
        section,
        scope,
        required_text(section, "initializer"),
        kind,
        axis if kind != "invariant" else None,
        maximum,
        management,
        group,
        one_of(section, "class", ("semantic", "advisory")) == "advisory",
    )
