"""Packages whose inference_metadata is at fault, its ports in `pipeline.workflow`."""

from __future__ import annotations

from support.breaking import (
    Broken,
    field,
    move_out,
    remove,
    without,
    write,
)
from support.tiny_metadata import workflow, write_metadata

Y = "inference_metadata.yaml"
W = "pipeline.workflow"


def flow(directory):
    return write_metadata(directory, workflow())


WORKFLOWS = [
    Broken(
        "model.io beside a workflow",
        flow,
        field(Y, "model.io", {"token_input": "input_ids"}),
        "inference_metadata.yaml: model.io: pipeline.workflow is there, too: two descriptions ",
    ),
    Broken(
        "artifact up",
        flow,
        field(Y, f"{W}.components.dec.implementation.artifact", "../x/model.onnx"),
        "inference_metadata.yaml: pipeline.workflow.components.dec.implementation.artifact",
    ),
    Broken(
        "artifact absolute",
        flow,
        field(Y, f"{W}.components.dec.implementation.artifact", "/etc/passwd"),
        "inference_metadata.yaml: pipeline.workflow.components.dec.implementation.artifact",
    ),
    Broken(
        "artifact links out",
        flow,
        move_out("decoder/model.onnx"),
        "inference_metadata.yaml: pipeline.workflow.components.dec.implementation.artifact",
    ),
    Broken(
        "artifact missing",
        flow,
        remove("decoder/model.onnx"),
        "inference_metadata.yaml: pipeline.workflow.components.dec.implementation.artifact",
    ),
    Broken(
        "policy missing",
        flow,
        remove("policies/pick.onnx"),
        "inference_metadata.yaml: pipeline.workflow.components.pick.implementation.artifact",
    ),
    Broken(
        "policy links out",
        flow,
        move_out("policies/pick.onnx"),
        "inference_metadata.yaml: pipeline.workflow.components.pick.implementation.artifact",
    ),
    Broken(
        "policy is a text",
        flow,
        write("policies/pick.onnx", "x" * 50),
        "policies/pick.onnx is damaged at byte 50: it holds no graph",
    ),
    Broken(
        "adapter kind",
        flow,
        field(
            Y,
            f"{W}.components.dec.implementation",
            {"kind": "adapter", "abi": "x", "version": "1", "artifact": "y"},
        ),
        "inference_metadata.yaml: pipeline.workflow.components.dec.implementation.kind is adapter",
    ),
    Broken(
        "role",
        flow,
        field(Y, f"{W}.components.dec.ports.roles.logits", "hidden_states"),
        "model.onnx has no port for logits: it has none beside state",
    ),
    Broken(
        "port of role",
        flow,
        field(Y, f"{W}.components.dec.ports.roles.tokens", "token_ids"),
        "inference_metadata.yaml: pipeline.workflow.components.dec.ports.roles.tokens",
    ),
    Broken(
        "state port",
        flow,
        field(Y, f"{W}.serving.state_service.groups.kv.ports.dec.k0.input", "past.0"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].steps[4].inputs.past.0",
    ),
    Broken(
        "state layer",
        flow,
        field(Y, f"{W}.serving.state_service.groups.kv.ports.dec.k0.layer", 1),
        "inference_metadata.yaml: pipeline.workflow.serving.state_service.groups.kv.ports.dec.",
    ),
    Broken(
        "state layer far",
        flow,
        field(Y, f"{W}.serving.state_service.groups.kv.ports.dec.k0.layer", 10**9),
        "inference_metadata.yaml: pipeline.workflow.serving.state_service.groups.kv.ports.dec.",
    ),
    Broken(
        "state group kind",
        flow,
        field(Y, f"{W}.serving.state_service.groups.kv.kind", "recurrent"),
        "inference_metadata.yaml: pipeline.workflow.serving.state_service.groups.kv.kind is re",
    ),
    Broken(
        "invoke input",
        flow,
        field(Y, f"{W}.steps.0.setup.0.inputs.tokens", "ids"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].setup[0].inputs.tokens",
    ),
    Broken(
        "invoke value",
        flow,
        field(Y, f"{W}.steps.0.setup.0.inputs.input_ids", "nothing"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].setup[0].inputs.input_ids",
    ),
    Broken(
        "component",
        flow,
        field(Y, f"{W}.steps.0.setup.0.component", "ghost"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].setup[0].component",
    ),
    Broken(
        "step kind",
        flow,
        field(Y, f"{W}.steps.0.kind", "goto"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].kind",
    ),
    Broken(
        "value reads itself",
        flow,
        field(Y, f"{W}.steps.0.steps.1.inputs.token", "body.slot"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].steps[1].inputs.token",
    ),
    Broken(
        "capability of manifest",
        flow,
        without(Y, f"{W}.manifest.capabilities.0"),
        "inference_metadata.yaml: pipeline.workflow.manifest.capabilities",
    ),
    Broken(
        "emit output",
        flow,
        field(Y, f"{W}.steps.0.steps.3.output", "words"),
        "inference_metadata.yaml: pipeline.workflow.steps[0].steps[3].output",
    ),
    Broken(
        "override input",
        flow,
        field(Y, "generation.overrides.temperature.input", "warmth"),
        "inference_metadata.yaml: generation.overrides.temperature.input",
    ),
    Broken(
        "override range",
        flow,
        field(Y, "generation.overrides.temperature.constraint", {"minimum": 2, "maximum": 1}),
        "inference_metadata.yaml: generation.overrides.temperature.constraint.minimum",
    ),
    Broken(
        "initializer",
        flow,
        field(Y, f"{W}.state.k0.initializer", "nowhere"),
        "inference_metadata.yaml: pipeline.workflow.state.k0.initializer: nothing defines 'now",
    ),
    Broken(
        "branch",
        flow,
        field(
            Y,
            f"{W}.steps.0.steps.0",
            {"kind": "branch", "predicate": "on", "cases": {"true": {"steps": []}}},
        ),
        "inference_metadata.yaml: pipeline.workflow.steps[0].steps[0] is a branch",
    ),
    Broken(
        "input role",
        flow,
        field(Y, f"{W}.inputs.ids.role.role", "smell"),
        "inference_metadata.yaml: pipeline.workflow.inputs.ids.role.role",
    ),
]
