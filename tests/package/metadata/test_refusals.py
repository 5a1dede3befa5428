"""Small changes to good packages: each is refused, and the message names the place."""

import copy
import json
import os

import onnx
import pytest

from support.tiny_metadata import (
    SPEC,
    STATIC,
    legacy,
    scaled_pick,
    scattered,
    static,
    workflow,
    write_metadata,
)
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions

GOOD = {
    "legacy": (legacy, SPEC),
    "static": (static, STATIC),
    "workflow": (workflow, SPEC),
    "scattered": (scattered, STATIC),
}
WORKFLOW = "pipeline.workflow"
LOOP = f"{WORKFLOW}.steps.0"
GROUP = f"{WORKFLOW}.serving.state_service.groups.kv"
DEC = f"{WORKFLOW}.components.dec"


def changed(document, changes):
    """The document after changes: dotted path to value, or to ... for a removal."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.replace("~", "\0").split(".")
        section = document
        for name in (part.replace("\0", ".") for part in parents):
            if isinstance(section, list):
                section = section[int(name)]
            else:
                section = section.setdefault(name, {})
        last = last.replace("\0", ".")
        if isinstance(section, list):
            last = int(last)
        if value is ...:
            del section[last]
        else:
            section[last] = value
    return document


def refuse(directory, good, changes, error, message):
    make, spec = GOOD[good]
    write_metadata(directory, changed(make(), changes), spec=spec)
    with pytest.raises(error, match=message) as caught:
        load_package(directory, LoadOptions())
    assert type(caught.value) is error
    assert "inference_metadata.yaml" in str(caught.value)


INVALID = [
    ("legacy", {"schema_version": "v2"}, "yaml: schema_version: 'v2' is not a version"),
    ("legacy", {"colour": 1}, "yaml: colour: there is no such field"),
    ("legacy", {"model.colour": 1}, "model.colour: there is no such field"),
    ("legacy", {"model.attention.heads": 4}, "model.attention.heads: there is no such field"),
    ("legacy", {"model.io.kv_input": []}, "model.io.kv_input: there is no such field"),
    ("legacy", {"model": []}, r"yaml: model: \[\] is not an object"),
    (
        "legacy",
        {"required_capabilities": ["kv_cache", "telepathy"]},
        r"required_capabilities\[1\]: there is no capability 'telepathy'",
    ),
    (
        "legacy",
        {"model.attention.num_kv_heads": 3},
        "model.attention.num_kv_heads: 3 does not divide num_attention_heads, 4",
    ),
    ("legacy", {"model.attention.type": ...}, "model.attention.type: it is missing"),
    ("legacy", {"model.max_sequence_length": 0}, "model.max_sequence_length: 0 is not from 1"),
    ("legacy", {"model.max_sequence_length": ...}, "model.max_sequence_length: it is missing"),
    ("legacy", {"model.vocab_size": 97}, "model.vocab_size: it is 97, and model.onnx has 96"),
    ("legacy", {"model.io.token_input": "ids"}, "model.io.token_input: .* no input called 'ids'"),
    (
        "legacy",
        {"model.io.kv_outputs.3": "present.7.value"},
        r"model.io.kv_outputs\[3\]: model.onnx has no output called 'present.7.value'",
    ),
    (
        "legacy",
        {"model.io.kv_outputs.3": "present.1.key"},
        r"model.io.kv_outputs\[3\]: 'present.1.key' is there twice",
    ),
    (
        "legacy",
        {"model.io.kv_outputs": ["present.0.key"]},
        "model.io.kv_outputs: it has 1 ports where kv_inputs has 4",
    ),
    (
        "legacy",
        {
            "model.io.kv_outputs.0": "present.0.value",
            "model.io.kv_outputs.1": "present.0.key",
        },
        "model.io.kv_outputs says that 'present.0.value' continues 'past_key_values.0.key'",
    ),
    (
        "legacy",
        {"model.io.inputs.1.dtype": "fp16"},
        r"model.io.inputs\[1\].dtype: it is fp16, and the port .* is float32",
    ),
    (
        "legacy",
        {"model.io.inputs.1.shape": ["b", 3, "t", 16]},
        r"model.io.inputs\[1\].shape\[1\]: it is 3, and the port .* has 2 there",
    ),
    (
        "legacy",
        {"model.io.outputs.0.rank": 2},
        r"model.io.outputs\[0\].shape: it has 3 sizes where the rank is 2",
    ),
    (
        "legacy",
        {"model.io.aliasing": "forbidden", "model.io.kv_ownership": "shared"},
        "model.io.aliasing: it is forbidden, and kv_ownership is shared",
    ),
    ("legacy", {"model.io.aliasing": "maybe"}, "model.io.aliasing: 'maybe' is not one of"),
    (
        "legacy",
        {"model.io.optional_inputs.x": {"presence": "p", "absent": {"kind": "ones"}}},
        "optional_inputs.x.absent.kind: 'ones' is not one of zeros",
    ),
    ("legacy", {"generation.default": {}, "generation.x": 1}, "generation.default: there is no"),
    (
        "legacy",
        {"generation.defaults.temperature": "hot"},
        'generation.defaults.temperature: "hot" is not a number',
    ),
    (
        "legacy",
        {"generation.overrides.temperature.input": "t"},
        "generation.overrides.temperature.input: 't' is no workflow input",
    ),
    (
        "legacy",
        {"profiles.x": {"kind": "generation"}},
        "profiles.x.version: it is missing",
    ),
    (
        "legacy",
        {"package.tokenizer": {"algorithm": "bpe"}},
        "package.tokenizer.vocab_size: it is missing",
    ),
    (
        "static",
        {"model.io.kv_inputs": ["key_cache.0", "value_cache.0"]},
        "model.io.static_cache: kv_inputs and kv_outputs describe the same state again",
    ),
    (
        "static",
        {"model.io.static_cache.write_indices_input": ...},
        "static_cache.write_indices_input: it is missing",
    ),
    (
        "static",
        {"model.io.static_cache.value_cache_outputs.1": ...},
        "static_cache.value_cache_outputs: it has 1 ports where key_cache_inputs has 2",
    ),
    (
        "workflow",
        {"model.io": {"token_input": "input_ids"}},
        "model.io: pipeline.workflow is there, too: two descriptions of one thing",
    ),
    ("workflow", {"pipeline.flow": 1}, "pipeline.flow: there is no such field"),
    (
        "workflow",
        {f"{WORKFLOW}.manifest.capabilities": ["workflow_ssa", "typed_emit"]},
        "the workflow uses serving_service_contract, bounded_state_recurrence, nested_control_flow",
    ),
    ("workflow", {f"{WORKFLOW}.steps": []}, "workflow.steps: there are none"),
    ("workflow", {f"{LOOP}.kind": "spiral"}, r"steps\[0\].kind: 'spiral' is not one of"),
    ("workflow", {f"{LOOP}.max_iterations": ...}, r"steps\[0\].max_iterations: it is missing"),
    (
        "workflow",
        {f"{LOOP}.steps.0.inputs.logits": "nowhere"},
        r"steps\[0\].steps\[0\].inputs.logits: the value 'nowhere' is not defined before",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.0.outputs.next_counter": "body.token"},
        r"steps\[0\].steps\[0\].outputs.next_counter: the value 'body.token' is defined twice",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.4.outputs.logits": "ids"},
        r"steps\[0\].steps\[4\].outputs.logits: the value 'ids' is defined twice",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.0.component": "dice"},
        r"steps\[0\].steps\[0\].component: there is no component 'dice'",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.0.inputs.logits": "zero"},
        r"steps\[0\].steps\[0\].inputs.logits: \"zero\" is no output of the decoder",
    ),
    (
        "workflow",
        {f"{LOOP}.carried.0.cell": "k9"},
        r"steps\[0\].carried\[0\].cell: there is no state 'k9'",
    ),
    (
        "workflow",
        {f"{LOOP}.carried.0": ..., f"{LOOP}.steps.4.inputs.past_key_values~0~key": "init.k0"},
        r"steps\[0\].carried: it lacks the state 'k0'",
    ),
    (
        "workflow",
        {f"{LOOP}.carried.0.next": "body.v0", f"{LOOP}.carried.1.next": "body.k0"},
        r"steps\[0\].carried\[0\].next: it is 'body.v0', and .* gives 'present.0.key' another",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.4.inputs.past_key_values~0~key": "k1"},
        r"steps\[4\].inputs.past_key_values.0.key: it does not read 'k0'",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.3.output": "words"},
        r"steps\[3\].output: there is no output 'words'",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.3.value": "k0"},
        r"steps\[3\].value: the state 'k0' is not the workflow's own",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.inputs.on.default": ...},
        "inputs.on.default: it is missing, and the source is a literal",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.state.k0.management": "workflow"},
        "state.k0.management: the group 'kv' is the runtime's storage",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.state.k0.release_boundary": ...},
        "state.k0.release_boundary: it is missing, and management is runtime",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.state.k0.service_group": "heap"},
        "state.k0.service_group: there is no group 'heap'",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.state.k0.recurrence.axis": 1},
        "state.k0.recurrence.axis: it is 1, and the group 'kv' has the sequence_axis 2",
    ),
    ("workflow", {f"{WORKFLOW}.serving.active": "x"}, "serving.active: there is no input"),
    ("workflow", {f"{GROUP}.kind": "full"}, "groups.kv.kind: 'full' is not one of"),
    ("workflow", {f"{GROUP}.sequence_axis": 1}, "groups.kv.sequence_axis: it is 1, and bnsh has 2"),
    (
        "workflow",
        {f"{GROUP}.ports.dec.k1.layer": ...},
        "ports.dec.k1.layer: it is missing, and the group has 2 ports of the role key",
    ),
    (
        "workflow",
        {f"{GROUP}.ports.dec.k1.layer": 0},
        "ports.dec.k1.layer: another port of the role key has the layer 0",
    ),
    (
        "workflow",
        {f"{GROUP}.ports.dec.k1.layer": 5},
        r"groups.kv.ports.dec: it has keys of the layers \[0, 5\], and values of \[0, 1\]",
    ),
    (
        "workflow",
        {f"{GROUP}.ports.dec.k0.input": "past.0", f"{LOOP}.steps.4.inputs.past~0": "k0"},
        "ports.dec.k0.input: model.onnx has no input called 'past.0'",
    ),
    (
        "workflow",
        {f"{GROUP}.capabilities.rollback_positions": 0},
        "capabilities.rollback_positions: it is 0",
    ),
    (
        "workflow",
        {f"{DEC}.ports.roles.input_ids": "tokens"},
        "components.dec.ports.roles.input_ids: 'tokens' is not one of",
    ),
    (
        "workflow",
        {f"{DEC}.ports.roles.scores": "logits"},
        "components.dec.ports.roles.scores: model.onnx has no output called 'scores'",
    ),
    (
        "workflow",
        {f"{DEC}.ports.inputs.input_ids": {"dtype": "int32", "rank": 2}},
        "components.dec.ports.inputs.input_ids.dtype: it is int32, and the port",
    ),
    (
        "workflow",
        {f"{DEC}.implementation.artifact": "other.onnx"},
        "components.dec.implementation.artifact: 'other.onnx': No such file",
    ),
    (
        "workflow",
        {f"{DEC}.implementation.artifact": "../model.onnx"},
        "components.dec.implementation.artifact: '../model.onnx' leads out of the package",
    ),
    (
        "workflow",
        {f"{DEC}.implementation.artifact": "/etc/passwd"},
        "components.dec.implementation.artifact: '/etc/passwd' leads out",
    ),
    (
        "workflow",
        {f"{DEC}.implementation.artifact": "decoder"},
        "components.dec.implementation.artifact: 'decoder' is not a file",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.sampler.contract.bindings.min_p": ...},
        "sampler.contract.bindings.min_p: it is missing, and onnx-genai.token-sampler@2 has it",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.end.contract.bindings.speed": "x"},
        "end.contract.bindings.speed: onnx-genai.termination-predicate@1 has no such binding",
    ),
    (
        "workflow",
        {"generation.defaults.temperature": 0.2},
        "generation.defaults.temperature: it is 0.2, and .*inputs.temperature.default is 0.7",
    ),
    (
        "workflow",
        {"generation.overrides.temperature.constraint.minimum": 2},
        "overrides.temperature.constraint.minimum: 2 is above the maximum, 1.5",
    ),
    (
        "workflow",
        {"generation.overrides.top_k.input": "mask"},
        "generation.overrides.top_k.input: 'mask' is no workflow input that a request gives",
    ),
    (
        "workflow",
        {"package.tokenizer.special_tokens.eos.id": 96},
        "special_tokens.eos.id: it is 96, and the vocabulary has the ids 0 to 95",
    ),
    (
        "workflow",
        {"package.tokenizer.artifacts.0.location": "../tokenizer.json"},
        r"tokenizer.artifacts\[0\].location: '../tokenizer.json' leads out of the package",
    ),
    ("scattered", {f"{GROUP}.logical_lengths": ...}, "groups.kv.logical_lengths: it is missing"),
    (
        "scattered",
        {f"{GROUP}.update.write_indices": "nowhere"},
        "update.write_indices: there is no state 'nowhere'",
    ),
    (
        "scattered",
        {f"{GROUP}.update.write_indices_ports": {}},
        "update.write_indices_ports: it names no port of 'dec'",
    ),
    (
        "scattered",
        {f"{GROUP}.update.kv_length_ports": ...},
        "update.kv_length_ports: it names no port of 'dec'",
    ),
    (
        "scattered",
        {f"{WORKFLOW}.inputs.room.default": 64},
        "update.capacity: it is 64, and the graph's buffers hold 128 tokens",
    ),
    (
        "scattered",
        {
            f"{WORKFLOW}.state.k0.recurrence": {"kind": "bounded", "axis": 1, "max": "room"},
            f"{WORKFLOW}.manifest.capabilities.0": "bounded_state_recurrence",
            f"{WORKFLOW}.manifest.capabilities": [
                *("workflow_ssa", "typed_emit", "serving_service_contract"),
                "bounded_state_recurrence",
            ],
        },
        "state.k0.recurrence.kind: it is bounded, and the buffers of a scattered group",
    ),
]


@pytest.mark.parametrize(("good", "changes", "message"), INVALID)
def test_a_wrong_document_is_refused_by_the_place(tmp_path, good, changes, message):
    refuse(tmp_path, good, changes, InvalidPackage, message)


def test_every_message_is_another():
    assert len({message for _, _, message in INVALID}) == len(INVALID)


SECOND = {"implementation": {"kind": "onnx", "artifact": "decoder/model.onnx"}}
INNER = {"kind": "loop", "continue_when": "active", "max_iterations": "limit"}
UNSUPPORTED = [
    (
        "workflow",
        {
            f"{GROUP}.checkpoint": {"adapter": "a", "version": "1"},
            f"{LOOP}.steps.3.value": "k0",
            f"{WORKFLOW}.outputs.tokens.role": "tensor",
        },
        r"steps\[3\].output is .*only tokens are given out, no tensor",
    ),
    (
        "legacy",
        {"required_capabilities": ["kv_cache", "prefix_cache", "loop_carried_state"]},
        "required_capabilities asks for prefix_cache, loop_carried_state",
    ),
    ("legacy", {"model.attention.type": "hyper"}, 'model.attention.type is "hyper"'),
    ("legacy", {"model.attention.sink_tokens": 4}, "model.attention.sink_tokens is 4"),
    (
        "legacy",
        {"model.attention.sliding_window": 64},
        "model.attention.sliding_window is 64: the graph's own attention has no window",
    ),
    ("legacy", {"model.io.state_pairs": [{}]}, r"model.io.state_pairs .*state pairs \(recurrent\)"),
    ("legacy", {"model.io.encoder_hidden_states_input": "e"}, "io.encoder_hidden_states_input"),
    ("legacy", {"model.io.cross_kv_inputs": ["c"]}, "model.io.cross_kv_inputs"),
    ("legacy", {"model.io.audio_features_input": "a"}, "model.io.audio_features_input"),
    ("legacy", {"model.io.inputs_embeds_input": "e"}, "model.io.inputs_embeds_input"),
    ("legacy", {"model.io.sequence_source": "inputs_embeds"}, "sequence_source is inputs_embeds"),
    ("legacy", {"model.io.kv_layout": "seq_major_bsnh"}, "model.io.kv_layout is"),
    ("legacy", {"model.io.kv_layout": {"strides": {}}}, "model.io.kv_layout is {"),
    ("legacy", {"model.io.kv_update": "replace"}, "model.io.kv_update is replace"),
    (
        "legacy",
        {"model.io.optional_inputs.pixels": {"presence": "p", "absent": {"kind": "zeros"}}},
        "model.io.optional_inputs.pixels is",
    ),
    ("legacy", {"generation.defaults.num_beams": 4}, "generation.defaults.num_beams is 4"),
    ("legacy", {"generation.defaults.repetition_penalty": 1.1}, "repetition_penalty is 1.1"),
    ("legacy", {"generation.defaults.min_length": 5}, "generation.defaults.min_length is 5"),
    ("legacy", {"adapters": {"cache": {}}}, "yaml: adapters is"),
    ("legacy", {"speculative": {"proposer": "p"}}, "yaml: speculative is"),
    ("legacy", {"preprocessing": {"image": {}}}, "yaml: preprocessing is"),
    (
        "legacy",
        {"profiles.x": {"kind": "telepathy", "version": "1"}},
        'profiles.x.kind is "telepathy": the profile is required, and it is not known',
    ),
    (
        "legacy",
        {"profiles.x": {"kind": "embedding", "version": "1"}},
        'profiles.x.kind is "embedding": the profile is required, and it is not executed',
    ),
    ("legacy", {"pipeline.models": {"encoder": {}}}, "pipeline.models asks for a pipeline"),
    (
        "workflow",
        {f"{WORKFLOW}.manifest.capabilities.0": "input_presence"},
        "manifest.capabilities asks for input_presence",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.1": {"kind": "branch", "predicate": "active", "cases": {}}},
        r"steps\[0\].steps\[1\] is a branch",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.1": INNER},
        r"steps\[0\].steps\[1\] is a loop inside a loop",
    ),
    (
        "workflow",
        {
            f"{WORKFLOW}.components.two": {
                **SECOND,
                "ports": {"roles": {"logits": "logits"}},
            }
        },
        "workflow.components has several decoders: dec, two",
    ),
    ("workflow", {f"{GROUP}.kind": "recurrent"}, "groups.kv.kind is recurrent"),
    ("workflow", {f"{GROUP}.kind": "cross_attention"}, "groups.kv.kind is cross_attention"),
    ("workflow", {f"{GROUP}.kind": "encoder"}, "groups.kv.kind is encoder"),
    (
        "workflow",
        {f"{GROUP}.kind": "sliding_attention"},
        "groups.kv.kind is .*the graph's own attention has no window",
    ),
    (
        "workflow",
        {
            f"{GROUP}.layout": "bsnh",
            f"{GROUP}.sequence_axis": 1,
            **{f"{WORKFLOW}.state.{c}.recurrence.axis": 1 for c in ("k0", "k1", "v0", "v1")},
        },
        "groups.kv.layout is bsnh",
    ),
    ("workflow", {f"{GROUP}.update.kind": "replace"}, "groups.kv.update.kind is replace"),
    ("workflow", {f"{GROUP}.ports.dec.k0.role": "combined"}, "ports.dec.k0.role is combined"),
    ("workflow", {f"{GROUP}.ports.dec.k0.access": "read_only"}, "k0.access is read_only"),
    (
        "workflow",
        {f"{DEC}.ports.roles.input_ids": "inputs_embeds"},
        "roles.input_ids is inputs_embeds",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.slot.implementation": {"kind": "binding"}},
        "components.slot.implementation.kind is binding",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.slot.effects": ["stream"]},
        "components.slot.effects is",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.sampler.contract.id": "acme.sampler"},
        "components.sampler.contract is acme.sampler@2: this version does not know that contract",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.sampler.contract.version": "3"},
        "contract is onnx-genai.token-sampler@3",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.components.sampler.contract.parameters.mode": "beam"},
        "sampler.contract.parameters.mode is beam",
    ),
    (
        "workflow",
        {
            f"{WORKFLOW}.components.end.contract": ...,
            f"{WORKFLOW}.components.end.implementation.artifact": "policies/slot.onnx",
            f"{LOOP}.carried.6.next": "body.done",
            f"{LOOP}.termination": "predicate",
        },
        r"steps\[0\].continue_when is .*it comes from 'end', and no contract says",
    ),
    (
        "workflow",
        {f"{DEC}.implementation.artifact": "decoder/model.onnx.textproto"},
        "artifact is 'model.onnx.textproto': this version reads ONNX graphs in binary form",
    ),
    (
        "workflow",
        {f"{LOOP}.steps.3.mode": "replace"},
        r"steps\[3\].mode is .*one after the other",
    ),
    (
        "workflow",
        {f"{WORKFLOW}.outputs.tokens.role": "event"},
        r"steps\[3\].output is .*only tokens are given out, no event",
    ),
]


@pytest.mark.parametrize(("good", "changes", "message"), UNSUPPORTED)
def test_what_is_not_executed_is_refused_by_name(tmp_path, good, changes, message):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "decoder").mkdir()
    (directory / "decoder/model.onnx.textproto").write_text("text")
    refuse(directory, good, changes, UnsupportedModel, message)


def test_a_graph_that_changes_the_logits_before_they_are_sampled_is_refused(tmp_path):
    write_metadata(tmp_path, workflow())
    onnx.save(scaled_pick(), tmp_path / "policies/pick.onnx")
    message = r"steps\[0\].steps\[0\].inputs.logits is \"last\": it comes from 'pick', and no"
    with pytest.raises(UnsupportedModel, match=message):
        load_package(tmp_path, LoadOptions())


def test_a_graph_is_not_taken_from_outside_by_a_link(tmp_path):
    write_metadata(tmp_path / "model", legacy())
    graph = tmp_path / "model/model.onnx"
    graph.rename(tmp_path / "outside.onnx")
    os.symlink(tmp_path / "outside.onnx", graph)
    with pytest.raises(InvalidPackage, match=r"'model.onnx' is a link out of the package"):
        load_package(tmp_path / "model", LoadOptions())


def test_a_missing_graph_is_named(tmp_path):
    write_metadata(tmp_path, legacy())
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(InvalidPackage, match=r"model.onnx is not there: inference_metadata.yaml"):
        load_package(tmp_path, LoadOptions())


def test_a_forced_hint_is_refused(tmp_path):
    write_metadata(tmp_path, legacy())
    hints = {"memory": [{"action": "pin", "strength": "force"}]}
    (tmp_path / "execution_hints.json").write_text(json.dumps(hints))
    with pytest.raises(UnsupportedModel, match=r"hints.json: memory\[0\].strength is 'force'"):
        load_package(tmp_path, LoadOptions())


LOSSY = [
    ("legacy", {"colour": 1}, ("colour", "1")),
    ("legacy", {"generation.defaults.num_beams": 4}, ("generation.defaults.num_beams", "4")),
    ("legacy", {"model.attention.sink_tokens": 4}, ("model.attention.sink_tokens", "4")),
    ("legacy", {"speculative": {"proposer": "p"}}, ("speculative", '{"proposer": "p"}')),
    (
        "legacy",
        {"required_capabilities": ["prefix_cache"]},
        ("required_capabilities", '["prefix_cache"]'),
    ),
    (
        "workflow",
        {f"{LOOP}.steps.3.colour": "red"},
        (f"{WORKFLOW}.steps[0].steps[3].colour", '"red"'),
    ),
]


@pytest.mark.parametrize(("good", "changes", "loss"), LOSSY)
def test_a_lossy_reading_goes_on_and_lists_the_loss(tmp_path, good, changes, loss):
    make, spec = GOOD[good]
    write_metadata(tmp_path, changed(make(), changes), spec=spec)
    package = load_package(tmp_path, LoadOptions(lossy=True))
    assert [(item.field, item.value) for item in package.losses] == [
        (f"inference_metadata.yaml {loss[0]}", loss[1])
    ]


def test_good_packages_lose_nothing(tmp_path):
    for name, (make, spec) in GOOD.items():
        write_metadata(tmp_path / name, make(), spec=spec)
        assert load_package(tmp_path / name, LoadOptions(lossy=True)).losses == ()
