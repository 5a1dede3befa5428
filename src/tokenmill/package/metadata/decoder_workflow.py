"""A workflow that is a single decoder in one loop: recognised, and held against its rules.

The steps are not executed. What they say is known beforehand: tokens go through one graph, its
logits into a sampler, the sampled token back into the graph, and state from step to step. This
module checks that a workflow says exactly that; whatever else it says is refused by its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.document import Section
from tokenmill.package.metadata.artifacts import artifact_path
from tokenmill.package.metadata.policies import (
    SAMPLER,
    STATE_UPDATE,
    TERMINATION,
    check_policy,
    is_greedy,
)
from tokenmill.package.metadata.reading import Reading
from tokenmill.package.metadata.ssa import all_steps
from tokenmill.package.metadata.state_groups import StateGroup
from tokenmill.package.metadata.steps import Emit, Invoke, Loop
from tokenmill.package.metadata.tensor_contract import check_contract
from tokenmill.package.metadata.value_flow import ValueFlow, moved_input
from tokenmill.package.metadata.workflow import Workflow, WorkflowComponent
from tokenmill.package.model_package import Ignored
from tokenmill.package.onnx_file import OnnxFile, read_onnx

_ONE = "this version runs single decoders, in one loop"


@dataclass(frozen=True, slots=True)
class DecoderWorkflow:
    """What a decoder's workflow says beside its ports.

    Attributes:
        decoder: the component that turns tokens into logits.
        groups: its state.
        is_greedy: its sampler always takes the best token.
        sampling: "temperature", "top_k", ... to the section of the input that the sampler reads
            it from.
        eos: (id, evidence) of the ends of text that its termination names.
        max_tokens: section of the input that bounds the loop, or None.
    """

    decoder: WorkflowComponent
    groups: tuple[StateGroup, ...]
    is_greedy: bool
    sampling: dict[str, Section]
    eos: tuple[tuple[int, str], ...]
    max_tokens: Section | None


def component_graph(root: Path, component: WorkflowComponent) -> OnnxFile:
    """Reads a component's graph.

    Raises:
        InvalidPackage: it is not there, outside the package, or damaged.
        UnsupportedModel: it is not an ONNX file in binary form.
    """
    if component.kind != "onnx":
        section = component.implementation
        raise UnsupportedModel(
            f"{section.file}: {section.field('kind')} is {component.kind}",
            why="this version runs ONNX graphs only",
        )
    file = artifact_path(root, component.implementation, "artifact")
    if file.suffix != ".onnx":
        section = component.implementation
        raise UnsupportedModel(
            f"{section.file}: {section.field('artifact')} is {file.name!r}",
            why="this version reads ONNX graphs in binary form, *.onnx",
        )
    return read_onnx(file)


def recognise(
    reading: Reading, workflow: Workflow, groups: tuple[StateGroup, ...], root: Path
) -> DecoderWorkflow:
    """Returns the single decoder that a workflow is.

    Raises:
        InvalidPackage: steps and state that contradict each other.
        UnsupportedModel: anything else than one decoder in one loop; names the place.
    """
    return _Recognition(reading, workflow, groups, root).run()


class _Recognition:
    def __init__(
        self,
        reading: Reading,
        workflow: Workflow,
        groups: tuple[StateGroup, ...],
        root: Path,
    ) -> None:
        self._reading, self._workflow, self._groups = reading, workflow, groups
        self._root = root
        self._decoder = _sole_decoder(workflow, groups)
        loops = [step for step in all_steps(workflow.steps) if isinstance(step, Loop)]
        if len(loops) > 1:
            section = loops[1].section
            raise UnsupportedModel(f"{section.file}: {section.path} is a second loop", why=_ONE)
        self._loop = loops[0] if loops else None
        self._flow = ValueFlow(workflow, self._through)
        self._graphs: dict[str, OnnxFile] = {}
        self._on_path: set[str] = set()
        self._policies: dict[str, str] = {}

    def run(self) -> DecoderWorkflow:
        for component in self._workflow.components.values():
            if component is not self._decoder:
                self._check_other(component)
        body = self._decoder_step()
        if self._loop is not None:
            self._check_state(self._loop, body)
        samplers = self._invokes_of(SAMPLER)
        self._check_path(body, samplers)
        self._check_emits()
        self._check_end()
        self._note_others()
        sampler = self._workflow.components[samplers[0].component] if samplers else None
        return DecoderWorkflow(
            self._decoder,
            self._groups,
            sampler is not None and is_greedy(sampler),
            self._sampling(samplers),
            self._eos(),
            self._bound(),
        )

    def _check_other(self, component: WorkflowComponent) -> None:
        if component.kind != "onnx":
            section = component.implementation
            raise UnsupportedModel(
                f"{section.file}: {section.field('kind')} is {component.kind}",
                why=f"the component {component.name!r} needs an adapter that is not there",
            )
        ports = component.section.section("ports")
        for name in ("inputs", "outputs"):
            contracts = ports.section(name)
            for port in contracts.names():
                check_contract(self._reading, contracts.section(port))
        if component.contract is not None:
            self._policies[component.name] = check_policy(component)

    def _decoder_step(self) -> Invoke:
        """Returns the step of the decoder that is repeated; one more may read the prompt."""
        inside = self._loop.steps if self._loop is not None else self._workflow.steps
        mine = [s for s in inside if isinstance(s, Invoke) and s.component == self._decoder.name]
        every = [
            step
            for step in all_steps(self._workflow.steps)
            if isinstance(step, Invoke) and step.component == self._decoder.name
        ]
        if not mine:
            section = self._loop.section if self._loop is not None else self._workflow.section
            raise UnsupportedModel(
                f"{section.file}: {section.field('steps')} do not invoke {self._decoder.name!r}",
                why=_ONE,
            )
        if len(mine) > 1 or len(every) > 2:
            section = (mine[1:] or [step for step in every if step is not mine[0]][1:])[0].section
            raise UnsupportedModel(
                f"{section.file}: {section.path} invokes the decoder once more",
                why="it can be invoked once for the prompt and once in the loop",
            )
        return mine[0]

    def _check_state(self, loop: Loop, body: Invoke) -> None:
        carried = {carry.cell: carry for carry in loop.carried}
        for group in self._groups:
            for port in group.ports:
                carry = carried.get(port.cell)
                if carry is None:
                    raise loop.section.wrong("carried", f"it lacks the state {port.cell!r}")
                if body.inputs.get(port.past) != port.cell:
                    why = f"it does not read {port.cell!r}, which {port.section.path} binds to it"
                    raise body.section.section("inputs").wrong(port.past, why)
                if body.outputs.get(port.present) != carry.next:
                    why = f"it is {carry.next!r}, and {body.section.field('outputs')} "
                    raise carry.section.wrong("next", why + f"gives {port.present!r} another name")

    def _invokes_of(self, contract_id: str) -> list[Invoke]:
        found = []
        for step in all_steps(self._workflow.steps):
            if isinstance(step, Invoke):
                contract = self._workflow.components[step.component].contract
                if contract is not None and contract.contract_id == contract_id:
                    found.append(step)
        return found

    def _check_path(self, body: Invoke, samplers: list[Invoke]) -> None:
        """Checks that the sampler reads the decoder's logits, and the decoder its tokens."""
        logits = self._ports_of("logits")
        for step in samplers:
            self._on_path.add(step.component)
            port = self._binding(step, "logits")
            for source in self._flow.sources(self._value(step, port)):
                if source.component != self._decoder.name or (logits and source.name not in logits):
                    self._refuse(source.component, step.section.section("inputs"), port)
        for port in self._ports_of("token_ids"):
            if port in body.inputs:
                self._check_tokens(body.inputs[port], body.section.section("inputs"), port)

    def _check_tokens(self, value: str, section: Section, field: str) -> None:
        """Checks that a value holds tokens of the prompt or of the sampler, and nothing else."""
        for source in self._flow.sources(value):
            if source.component is None:
                continue
            contract = self._workflow.components[source.component].contract
            if contract is None or contract.contract_id != SAMPLER:
                self._refuse(source.component, section, field)
            elif contract.bindings["token"] != source.name:
                raise section.wrong(field, f"it reads {source.name!r} of the sampler, not a token")

    def _check_emits(self) -> None:
        tokens = False
        for step in all_steps(self._workflow.steps):
            if not isinstance(step, Emit):
                continue
            role = self._workflow.outputs[step.output]
            if role == "tokens":
                tokens = True
                self._check_tokens(step.value, step.section, "value")
                if self._loop is not None and step.mode != "append":
                    why = "tokens are given out one after the other"
                    self._reading.refuse(step.section, "mode", why)
            elif self._loop is None:
                self._reading.ignore(step.section, "output", "tokens are given out instead")
            else:
                self._reading.refuse(
                    step.section, "output", f"only tokens are given out, no {role}"
                )
        if self._loop is not None and not tokens:
            section = self._loop.section
            raise UnsupportedModel(
                f"{section.file}: {section.field('steps')} give no tokens out", why=_ONE
            )

    def _check_end(self) -> None:
        """Checks that nothing but a known contract ends the loop."""
        loop = self._loop
        if loop is None or loop.termination == "generation_eos":
            return
        for source in self._flow.sources(loop.continue_when):
            if source.component is None:
                continue
            contract = self._workflow.components[source.component].contract
            if contract is None or contract.contract_id != TERMINATION:
                self._refuse(source.component, loop.section, "continue_when")

    def _sampling(self, samplers: list[Invoke]) -> dict[str, Section]:
        out = {}
        for step in samplers:
            contract = self._workflow.components[step.component].contract
            assert contract is not None, "samplers are found by their contract"
            for name in ("temperature", "top_k", "top_p", "min_p"):
                port = contract.bindings.get(name)
                if port is None or port not in step.inputs:
                    continue
                for source in self._flow.sources(step.inputs[port]):
                    if source.component is not None:
                        self._refuse(source.component, step.section.section("inputs"), port)
                    elif source.name in self._workflow.inputs:
                        out[name] = self._workflow.inputs[source.name].section
        return out

    def _eos(self) -> tuple[tuple[int, str], ...]:
        out: list[tuple[int, str]] = []
        for step in self._invokes_of(TERMINATION):
            value = step.inputs.get(self._binding(step, "eos_ids"))
            for source in self._flow.sources(value) if value else ():
                found = self._workflow.inputs.get(source.name)
                if source.component is None and found is not None:
                    ids = found.section.integers("default")
                    evidence = found.section.evidence("default")
                    out.extend((token_id, evidence) for token_id in ids)
        return tuple(dict.fromkeys(out))

    def _bound(self) -> Section | None:
        if self._loop is None:
            return None
        found = self._workflow.inputs.get(self._loop.max_iterations)
        return found.section if found is not None else None

    def _note_others(self) -> None:
        components = self._workflow.section.section("components")
        for name, component in self._workflow.components.items():
            if component is self._decoder:
                continue
            contract = component.contract
            value = contract.name if contract else component.implementation.brief("artifact")
            why = self._policies.get(name)
            if why is None:
                why = "this version computes masks, positions and lengths from the ports' roles"
                if name in self._on_path:
                    why = "it only picks or arranges what it is given; this version does so itself"
            self._reading.ignored.append(Ignored(components.evidence(name), value, why))

    def _through(self, name: str, port: str) -> str | None:
        component = self._workflow.components[name]
        if component is self._decoder:
            return None
        contract = component.contract
        if contract is not None:
            is_update = contract.contract_id == STATE_UPDATE and contract.bindings["next"] == port
            return contract.bindings["update"] if is_update else None
        if name not in self._graphs:
            self._graphs[name] = component_graph(self._root, component)
        self._on_path.add(name)
        return moved_input(self._graphs[name], port)

    def _ports_of(self, role: str) -> tuple[str, ...]:
        return tuple(port for port, mine in self._decoder.roles.items() if mine == role)

    def _binding(self, step: Invoke, name: str) -> str:
        contract = self._workflow.components[step.component].contract
        assert contract is not None, "steps are found by the component's contract"
        return contract.bindings[name]

    def _value(self, step: Invoke, port: str) -> str:
        if port not in step.inputs:
            raise step.section.section("inputs").wrong(port, "it is missing")
        return step.inputs[port]

    def _refuse(self, component: str | None, section: Section, field: str) -> None:
        """Refuses a value that a graph computes in a way that nobody tells."""
        why = f"it comes from {component!r}, and no contract says what that computes"
        if component is None:
            raise section.wrong(field, f"{section.brief(field)} is no output of the decoder")
        self._reading.refuse(section, field, why)


def _sole_decoder(workflow: Workflow, groups: tuple[StateGroup, ...]) -> WorkflowComponent:
    """Returns the component that keeps the state, or else the one that has the logits."""
    keepers = {port.component for group in groups for port in group.ports}
    names = [
        name
        for name, component in workflow.components.items()
        if name in keepers or "logits" in component.roles.values()
    ]
    if not names:
        names = [name for name, part in workflow.components.items() if part.contract is None]
    section = workflow.section
    if len(names) != 1:
        many = f"has several decoders: {', '.join(names)}" if names else "has no decoder"
        raise UnsupportedModel(f"{section.file}: {section.field('components')} {many}", why=_ONE)
    return workflow.components[names[0]]
