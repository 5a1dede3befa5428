"""The steps of a workflow: invoke, loop and emit, in order. Sequences are dissolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.reading import Reading, one_of, required_text
from tokenmill.package.metadata.tensor_contract import check_contract

_FIELDS = {
    "sequence": ("steps",),
    "invoke": ("component", "inputs", "outputs"),
    "emit": ("value", "output", "mode", "when", "valid_length", "axis"),
    "branch": ("predicate", "cases", "default", "outputs"),
    "loop": (
        "setup",
        "steps",
        "continue_when",
        "max_iterations",
        "termination",
        "iteration",
        "carried",
    ),
}


@dataclass(frozen=True, slots=True)
class Invoke:
    """Runs a component.

    Attributes:
        inputs: port to the value that it reads.
        outputs: port to the value that it defines.
    """

    section: Section
    component: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Emit:
    """Gives a value out."""

    section: Section
    value: str
    output: str
    mode: str
    when: str | None
    valid_length: str | None


@dataclass(frozen=True, slots=True)
class Carry:
    """A state cell of a loop: its first value (None: the cell's own) and its next one."""

    section: Section
    cell: str
    initial: str | None
    next: str


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs `setup` once, then `steps` while `continue_when` holds.

    Attributes:
        termination: "predicate" or "generation_eos".
        iteration: the value that counts from 0, or None.
    """

    section: Section
    setup: tuple[Step, ...]
    steps: tuple[Step, ...]
    continue_when: str
    max_iterations: str
    termination: str
    iteration: str | None
    carried: tuple[Carry, ...]


Step = Invoke | Emit | Loop


def read_steps(reading: Reading, section: Section, name: str) -> tuple[Step, ...]:
    """Parses a list of steps.

    Raises:
        InvalidPackage: a step of an unknown kind, or with a field that is missing or not known.
        UnsupportedModel: a branch.
    """
    return tuple(step for child in section.children(name) for step in _step(reading, child))


def _step(reading: Reading, section: Section) -> Iterator[Step]:
    kind = one_of(section, "kind", _FIELDS)
    if kind is None:
        raise section.wrong("kind", "it is missing")
    reading.only(section, ("kind", *_FIELDS[kind]))
    match kind:
        case "sequence":
            yield from read_steps(reading, section, "steps")
        case "invoke":
            component = required_text(section, "component")
            yield Invoke(section, component, _names(section, "inputs"), _names(section, "outputs"))
        case "emit":
            yield _emit(section)
        case "loop":
            yield _loop(reading, section)
        case _:
            raise UnsupportedModel(
                f"{section.file}: {section.path} is a branch",
                why="this version runs single decoders, in one loop without branches",
            )


def _names(section: Section, name: str) -> dict[str, str]:
    ports = section.section(name)
    return {port: required_text(ports, port) for port in ports.names()}


def _emit(section: Section) -> Emit:
    mode = one_of(section, "mode", ("replace", "append", "event"))
    if mode is None:
        raise section.wrong("mode", "it is missing")
    section.integer("axis", high=63)
    return Emit(
        section,
        required_text(section, "value"),
        required_text(section, "output"),
        mode,
        section.text("when"),
        section.text("valid_length"),
    )


def _loop(reading: Reading, section: Section) -> Loop:
    termination = one_of(section, "termination", ("predicate", "generation_eos")) or "predicate"
    return Loop(
        section,
        read_steps(reading, section, "setup"),
        read_steps(reading, section, "steps"),
        required_text(section, "continue_when"),
        required_text(section, "max_iterations"),
        termination,
        _iteration(reading, section),
        tuple(_carry(reading, child) for child in section.children("carried")),
    )


def _iteration(reading: Reading, section: Section) -> str | None:
    """Returns the induction value: its name alone, or an object with its name and contract."""
    if not isinstance(section.raw("iteration"), dict):
        return section.text("iteration")
    iteration = section.section("iteration")
    reading.only(iteration, ("value", "contract"))
    if "contract" in iteration:
        check_contract(reading, iteration.section("contract"))
    return required_text(iteration, "value")


def _carry(reading: Reading, section: Section) -> Carry:
    reading.only(section, ("cell", "initial", "next"))
    return Carry(
        section,
        required_text(section, "cell"),
        section.text("initial"),
        required_text(section, "next"),
    )
