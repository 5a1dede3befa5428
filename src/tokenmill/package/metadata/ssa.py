"""Every value of a workflow is defined once, and before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.steps import Emit, Invoke, Loop, Step
from tokenmill.package.metadata.workflow import StateCell, Workflow


def check_values(workflow: Workflow) -> None:
    """Follows the steps in order.

    Raises:
        InvalidPackage: a value, cell, component or output that is not defined, or a value that
            is defined twice; names the field that reads or defines it.
        UnsupportedModel: a loop inside a loop.
    """
    defined = set(workflow.inputs)
    for item in workflow.inputs.values():
        if item.present_as is not None:
            _define(item.section, "present_as", item.present_as, defined)
    for name in workflow.cells:
        if name in defined:
            raise workflow.section.section("state").wrong(name, "an input has that name, too")
    _Walk(workflow).steps(workflow.steps, defined, in_loop=False)
    for cell in workflow.cells.values():
        if cell.initializer not in defined:
            raise cell.section.wrong("initializer", f"nothing defines {cell.initializer!r}")
    _check_serving(workflow)


def used_capabilities(workflow: Workflow) -> Iterator[str]:
    """Yields the capabilities that a workflow uses, as its manifest must list them."""
    yield "workflow_ssa"
    if workflow.serving.names():
        yield "serving_service_contract"
    for cell in workflow.cells.values():
        if cell.scope == "session":
            yield "session_state_lease"
        if cell.recurrence == "bounded":
            yield "bounded_state_recurrence"
        if cell.is_advisory:
            yield "advisory_state"
    if any(item.present_as is not None for item in workflow.inputs.values()):
        yield "input_presence"
    if workflow.effects:
        yield "linear_effects"
    yield from _of_steps(workflow.steps)


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Yields the steps and, after each loop, those inside it."""
    for step in steps:
        yield step
        if isinstance(step, Loop):
            yield from all_steps(step.setup)
            yield from all_steps(step.steps)


def _of_steps(steps: Iterable[Step]) -> Iterator[str]:
    for step in all_steps(steps):
        if isinstance(step, Emit):
            yield "typed_emit"
            if step.mode == "event":
                yield "streaming_emit"
            if step.valid_length is not None:
                yield "emit_valid_length"
        elif isinstance(step, Loop):
            yield "nested_control_flow"
            if step.iteration is not None:
                yield "loop_induction_values"
            if any(isinstance(inner, Emit) for inner in all_steps(step.steps)):
                yield "linear_effects"


class _Walk:
    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow

    def steps(self, steps: Iterable[Step], defined: set[str], *, in_loop: bool) -> None:
        for step in steps:
            if isinstance(step, Invoke):
                self._invoke(step, defined)
            elif isinstance(step, Emit):
                self._emit(step, defined)
            elif in_loop:
                raise UnsupportedModel(
                    f"{step.section.file}: {step.section.path} is a loop inside a loop",
                    why="this version runs single decoders, in one loop",
                )
            else:
                self._loop(step, defined)

    def _invoke(self, step: Invoke, defined: set[str]) -> None:
        if step.component not in self._workflow.components:
            why = f"there is no component {step.component!r}"
            raise step.section.wrong("component", why)
        for port, value in step.inputs.items():
            _read(step.section.section("inputs"), port, value, defined)
        for port, value in step.outputs.items():
            if value in self._workflow.cells:
                why = f"{value!r} is a state cell; a loop carries it"
                raise step.section.section("outputs").wrong(port, why)
            _define(step.section.section("outputs"), port, value, defined)

    def _emit(self, step: Emit, defined: set[str]) -> None:
        _read(step.section, "value", step.value, defined)
        for name, value in (("when", step.when), ("valid_length", step.valid_length)):
            if value is not None:
                _read(step.section, name, value, defined)
        if step.output not in self._workflow.outputs:
            raise step.section.wrong("output", f"there is no output {step.output!r}")
        cell = self._workflow.cells.get(step.value)
        if cell is not None and not self._may_leave(cell):
            why = f"the state {step.value!r} is not the workflow's own, so it cannot be given out"
            raise step.section.wrong("value", why)

    def _may_leave(self, cell: StateCell) -> bool:
        """Whether a cell is the workflow's own, or its group says how it is written out."""
        if cell.management == "workflow":
            return True
        groups = self._workflow.serving.section("state_service").section("groups")
        return cell.group in groups.names() and "checkpoint" in groups.section(str(cell.group))

    def _loop(self, step: Loop, defined: set[str]) -> None:
        self.steps(step.setup, defined, in_loop=True)
        inside = set(defined)
        for carry in step.carried:
            cell = self._workflow.cells.get(carry.cell)
            if cell is None:
                raise carry.section.wrong("cell", f"there is no state {carry.cell!r}")
            if carry.initial is None:
                _read(cell.section, "initializer", cell.initializer, defined)
            else:
                _read(carry.section, "initial", carry.initial, defined)
            _define(carry.section, "cell", carry.cell, inside)
        for name in ("continue_when", "max_iterations"):
            value = step.continue_when if name == "continue_when" else step.max_iterations
            _read(step.section, name, value, inside)
        if step.iteration is not None:
            _define(step.section, "iteration", step.iteration, inside)
        self.steps(step.steps, inside, in_loop=True)
        for carry in step.carried:
            _read(carry.section, "next", carry.next, inside)
        defined.update(carry.cell for carry in step.carried)


def _check_serving(workflow: Workflow) -> None:
    serving = workflow.serving
    if not serving.names():
        return
    for name in ("active", "done", "accepted_len"):
        value = serving.text(name)
        if value is None and name != "accepted_len":
            raise serving.wrong(name, "it is missing")
        if value is not None and value not in workflow.inputs and value not in workflow.cells:
            raise serving.wrong(name, f"there is no input and no state {value!r}")


def _read(section: Section, name: str, value: str, defined: set[str]) -> None:
    if value not in defined:
        raise section.wrong(name, f"the value {value!r} is not defined before it is read")


def _define(section: Section, name: str, value: str, defined: set[str]) -> None:
    if value in defined:
        raise section.wrong(name, f"the value {value!r} is defined twice")
    defined.add(value)
