"""Documents that are read: what the package says afterwards."""

import json
import shutil

import pytest

from support.tiny_metadata import SPEC, STATIC, legacy, scattered, static, workflow, write_metadata
from support.tiny_onnx import TinySpec
from support.tiny_plain import PlainSpec, write_plain
from tokenmill.core.errors import InvalidPackage
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import (
    GenerationDefaults,
    Ignored,
    PackageForm,
    Permissions,
    Range,
    Role,
    StateLayout,
)

STRICT = LoadOptions()


def read(directory, document, **fields):
    return load_package(write_metadata(directory, document, **fields), STRICT)


def reasons(package):
    return {item.field.partition(" ")[2]: (item.value, item.why) for item in package.ignored}


def roles(package):
    return {(b.role, b.layer): (b.port.name, b.why) for b in package.decoder.bindings}


def test_a_legacy_document_tells_ports_state_and_limits(tmp_path):
    package = read(tmp_path, legacy())
    assert package.form is PackageForm.INFERENCE_METADATA
    assert package.decoder.file == tmp_path / "model.onnx"
    assert (package.context_length, package.vocab_size) == (256, 96)
    assert package.state.layout is StateLayout.SHARED_BUFFER
    assert [(layer.num_kv_heads, layer.head_dim) for layer in package.state.attention] == [
        (2, 16),
        (2, 16),
    ]
    found, io = roles(package), "inference_metadata.yaml model.io"
    assert found[Role.INPUT_IDS, None][0] == "input_ids"
    assert f"{io}.token_input" in found[Role.INPUT_IDS, None][1]
    assert found[Role.PAST_VALUE, 1][0] == "past_key_values.1.value"
    assert f"{io}.kv_inputs" in found[Role.PAST_VALUE, 1][1]
    assert found[Role.PRESENT_KEY, 0][0] == "present.0.key"
    assert package.defaults == GenerationDefaults()
    assert package.permissions == Permissions()
    assert package.losses == ()


def test_what_is_not_used_is_listed_with_a_reason(tmp_path):
    ignored = reasons(read(tmp_path, legacy()))
    assert ignored["kv_cache"] == (
        '{"native_dtype": "float32"}',
        "it changes no output; the graph tells it",
    )
    assert ignored["model.architecture"][0] == '"llama"'
    assert ignored["model.io.kv_ownership"][0] == '"owned"'


@pytest.mark.parametrize("name", ["inference_metadata.yml", "inference_metadata.json"])
def test_the_document_may_be_yml_or_json(tmp_path, name):
    package = read(tmp_path, legacy(), name=name)
    assert f"{name} model.io.token_input" in roles(package)[Role.INPUT_IDS, None][1]


def test_a_document_that_names_no_ports_leaves_them_to_the_graph(tmp_path):
    document = {"model": {"max_sequence_length": 100}}
    package = read(tmp_path, document)
    assert roles(package)[Role.PAST_KEY, 1][0] == "past_key_values.1.key"
    assert package.context_length == 100


def test_the_only_graph_needs_no_name(tmp_path):
    directory = write_metadata(tmp_path, legacy())
    (directory / "model.onnx").rename(directory / "smollm.onnx")
    assert load_package(directory, STRICT).decoder.file.name == "smollm.onnx"


def test_keys_and_values_are_told_apart_by_the_operator_that_reads_them(tmp_path):
    document = legacy()
    io = document["model"]["io"]
    for name in ("kv_inputs", "kv_outputs"):
        io[name] = sorted(io[name], key=lambda port: not port.endswith("value"))
    found = roles(read(tmp_path, document))
    assert found[Role.PAST_KEY, 0][0] == "past_key_values.0.key"
    assert found[Role.PAST_VALUE, 1][0] == "past_key_values.1.value"


def test_a_static_cache_has_the_capacity_of_its_buffers(tmp_path):
    package = read(tmp_path, static(), spec=STATIC)
    assert (package.state.layout, package.state.capacity) == (StateLayout.STATIC_CACHE, 128)
    assert package.context_length == 128
    found = roles(package)
    assert found[Role.WRITE_INDICES, None][0] == "write_indices"
    assert found[Role.KV_LENGTHS, None][0] == "nonpad_kv_seqlen"
    assert found[Role.PAST_KEY, 1][0] == "key_cache.1"
    assert found[Role.PRESENT_VALUE, 0][0] == "updated_value_cache.0"
    assert reasons(package)["model.max_sequence_length"] == (
        "256",
        "the graph's static cache holds 128 tokens",
    )


def test_a_workflow_of_one_decoder_in_one_loop_is_understood(tmp_path):
    package = read(tmp_path, workflow())
    assert package.decoder.file == tmp_path / "decoder/model.onnx"
    assert (package.state.layout, package.context_length) == (StateLayout.SHARED_BUFFER, 200)
    found = roles(package)
    path = "inference_metadata.yaml pipeline.workflow"
    assert f"{path}.components.dec.ports.roles.input_ids" in found[Role.INPUT_IDS, None][1]
    port, why = found[Role.PRESENT_VALUE, 1]
    assert port == "present.1.value"
    assert f"{path}.serving.state_service.groups.kv.ports.dec.v1.output" in why


def test_a_workflows_inputs_give_defaults_and_its_overrides_permissions(tmp_path):
    package = read(tmp_path, workflow())
    assert package.defaults == GenerationDefaults(0.7, 40, 0.9, 0.0, max_tokens=50)
    assert package.permissions.overrides == {
        "temperature": Range(None, 1.5),
        "max_tokens": Range(1, None),
    }


def test_a_workflows_components_that_are_not_run_are_listed(tmp_path):
    ignored = reasons(read(tmp_path, workflow()))
    components = "pipeline.workflow.components"
    assert ignored[f"{components}.sampler"] == (
        "onnx-genai.token-sampler@2",
        "the sampler's contract says how it draws; this version draws itself",
    )
    assert ignored[f"{components}.end"][0] == "onnx-genai.termination-predicate@1"
    assert ignored[f"{components}.pick"] == (
        '"policies/pick.onnx"',
        "it only picks or arranges what it is given; this version does so itself",
    )


def test_a_greedy_sampler_makes_the_package_greedy(tmp_path):
    document = workflow()
    sampler = document["pipeline"]["workflow"]["components"]["sampler"]
    sampler["contract"]["parameters"]["mode"] = "greedy"
    assert read(tmp_path, document).defaults.temperature == 0.0


def test_a_scattered_cache_is_understood_without_a_loop(tmp_path):
    package = read(tmp_path, scattered(), spec=STATIC)
    assert (package.state.layout, package.state.capacity) == (StateLayout.STATIC_CACHE, 128)
    found = roles(package)
    assert found[Role.WRITE_INDICES, None][0] == "write_indices"
    assert "update.kv_length_ports.dec" in found[Role.KV_LENGTHS, None][1]
    assert found[Role.PAST_VALUE, 1][0] == "value_cache.1"


def test_a_loop_may_end_by_a_known_contract(tmp_path):
    document = workflow()
    loop = document["pipeline"]["workflow"]["steps"][0]
    loop["termination"] = "predicate"
    assert read(tmp_path, document).context_length == 200


def test_sequences_are_dissolved(tmp_path):
    document = workflow()
    loop = document["pipeline"]["workflow"]["steps"][0]
    loop["steps"] = [{"kind": "sequence", "steps": loop["steps"]}]
    assert read(tmp_path, document).context_length == 200


def test_layers_are_ordered_by_their_numbers_not_by_their_labels(tmp_path):
    document = workflow()
    spec = TinySpec(layers=2)
    group = document["pipeline"]["workflow"]["serving"]["state_service"]["groups"]["kv"]
    for alias in group["ports"]["dec"].values():
        alias["layer"] = {0: 14, 1: 9}[alias["layer"]]
    found = roles(read(tmp_path, document, spec=spec))
    assert found[Role.PAST_KEY, 0][0] == "past_key_values.1.key"
    assert found[Role.PAST_KEY, 1][0] == "past_key_values.0.key"


def test_layers_of_two_groups_are_numbered_in_the_order_of_the_graph(tmp_path):
    document = workflow()
    flow = document["pipeline"]["workflow"]
    groups = flow["serving"]["state_service"]["groups"]
    groups["far"] = json.loads(json.dumps(groups["kv"]))
    ports, far = groups["kv"]["ports"]["dec"], groups["far"]["ports"]["dec"]
    for cell in list(ports):
        if cell.endswith("0"):
            del far[cell]
        else:
            del ports[cell]
            far[cell]["layer"] = 0
            flow["state"][cell]["service_group"] = "far"
    found = roles(read(tmp_path, document))
    assert found[Role.PAST_KEY, 0][0] == "past_key_values.0.key"
    assert found[Role.PAST_KEY, 1][0] == "past_key_values.1.key"


def test_special_tokens_come_from_the_document_and_the_termination(tmp_path):
    text = read(tmp_path, workflow()).text
    assert (text.bos_token_id, text.pad_token_id) == (1, 0)
    assert text.eos_token_ids == {2, 3}
    assert text.special_tokens["eos_token"] == "<|end|>"
    assert text.tokenizer_file == tmp_path / "tokenizer.json"


def test_a_package_that_tells_no_end_of_text_says_so(tmp_path):
    package = read(tmp_path, legacy())
    assert package.text.eos_token_ids == frozenset()
    why = "no file says which token ends a text; a reply ends at its limit"
    assert Ignored("eos_token_id", "none", why) in package.ignored


def test_the_tokenizer_may_lie_in_a_folder(tmp_path):
    document = workflow()
    document["package"]["tokenizer"]["artifacts"] = [{"location": "text/tokenizer.json"}]
    directory = write_metadata(tmp_path, document)
    (directory / "text").mkdir()
    shutil.move(directory / "tokenizer.json", directory / "text")
    text = load_package(directory, STRICT).text
    assert text.tokenizer_file == tmp_path / "text/tokenizer.json"


def test_permissions_are_read(tmp_path):
    document = legacy()
    document["model"]["runtime_configurable"] = {
        "prefix_cache": True,
        "continuous_batching": False,
        "chunked_prefill": {"chunk_size": 64},
    }
    assert read(tmp_path, document).permissions == Permissions(True, False, 64, None)


@pytest.mark.parametrize(
    ("defaults", "wanted"),
    [
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
            GenerationDefaults(0.7, None, 0.95),
        ),
        ({"do_sample": False, "temperature": 0.7}, GenerationDefaults(0.0)),
        ({"temperature": 0.5, "top_k": 3}, GenerationDefaults(0.5, 3)),
        ({"num_beams": 1, "length_penalty": 2, "max_length": 9}, GenerationDefaults()),
    ],
)
def test_generation_defaults_are_read(tmp_path, defaults, wanted):
    assert read(tmp_path, legacy() | {"generation": {"defaults": defaults}}).defaults == wanted


def test_the_window_that_the_graph_has_may_be_declared(tmp_path):
    document = legacy()
    document["model"]["attention"]["sliding_window"] = 32
    package = read(tmp_path, document, spec=TinySpec(window=32))
    assert package.state.attention[0].sliding_window == 32


def test_an_attention_of_the_future_is_read_by_its_fallback(tmp_path):
    document = legacy()
    document["model"]["attention"] |= {"type": "holographic", "fallback_behavior": "gqa"}
    assert reasons(read(tmp_path, document))["model.attention.type"] == (
        '"holographic"',
        "the fallback gqa is taken",
    )


def test_an_ignorable_profile_is_skipped_whatever_it_says(tmp_path):
    profile = {"kind": "telepathy", "requirement": "ignorable", "field": [1]}
    package = read(tmp_path, legacy() | {"profiles": {"future": profile}})
    assert reasons(package)["profiles.future"][1] == "it is ignorable"


def test_a_profile_of_text_generation_is_what_is_done_anyway(tmp_path):
    profile = {"kind": "generation", "version": "1"}
    package = read(tmp_path, legacy() | {"profiles": {"text": profile}})
    assert "profiles.text" in reasons(package)


def test_informative_sections_are_listed(tmp_path):
    more = {
        "quantization": {"default": "int4", "overrides": [{"layers": "0-1", "precision": "int8"}]},
        "hardware_requirements": {"min_memory_gb": 1.5, "required_dtypes": ["fp32"]},
    }
    ignored = reasons(read(tmp_path, legacy() | more))
    assert {"quantization", "hardware_requirements"} <= ignored.keys()


def test_hints_that_are_preferences_are_ignored(tmp_path):
    directory = write_metadata(tmp_path, legacy())
    hint = {"device": {"type": "gpu"}, "strength": "prefer"}
    (directory / "execution_hints.json").write_text(json.dumps({"placement": [hint]}))
    package = load_package(directory, STRICT)
    assert ("hints", "this version follows no hints") in {
        (item.value, item.why) for item in package.ignored
    }


@pytest.mark.parametrize("version", ["v1", "1.0", None])
def test_the_first_version_of_the_format_is_read(tmp_path, version):
    assert read(tmp_path, legacy() | {"schema_version": version}).vocab_size == SPEC.vocab


def test_optional_inputs_that_are_always_fed_are_ignored(tmp_path):
    document = legacy()
    absent = {"kind": "zeros", "shape": ["batch", 1]}
    document["model"]["io"]["optional_inputs"] = {
        "attention_mask": {"presence": "has_mask", "absent": absent}
    }
    ignored = reasons(read(tmp_path, document))
    assert ignored["model.io.optional_inputs.attention_mask"][1] == "the port is always fed"


def test_the_fingerprint_follows_the_document(tmp_path):
    one = read(tmp_path / "one", legacy())
    other = legacy()
    other["model"]["max_sequence_length"] = 255
    assert one.fingerprint != read(tmp_path / "two", other).fingerprint
    assert one.fingerprint == read(tmp_path / "three", legacy()).fingerprint


def plain(directory, model):
    write_plain(directory, PlainSpec(window=8))
    document = {"model": {"max_sequence_length": 100, **model}}
    (directory / "inference_metadata.json").write_text(json.dumps(document))
    return load_package(directory, STRICT)


def test_a_graph_that_appends_its_state_is_plain(tmp_path):
    package = plain(tmp_path, {})
    assert (package.state.layout, package.context_length) == (StateLayout.PLAIN, 100)


@pytest.mark.parametrize("field", [{"aliasing": "required"}, {"kv_ownership": "shared"}])
def test_state_that_must_be_shared_needs_a_graph_that_shares_it(tmp_path, field):
    name = next(iter(field))
    message = f"model.io.{name}: it is .*, and the graph makes a new tensor of its state"
    with pytest.raises(InvalidPackage, match=message):
        plain(tmp_path, {"io": field})


def test_a_window_in_a_plain_graphs_mask_is_the_graphs_own(tmp_path):
    package = plain(tmp_path, {"attention": {"type": "gqa", "sliding_window": 8}})
    assert reasons(package)["model.attention.sliding_window"] == (
        "8",
        "all state is kept; the graph's own mask decides what is looked at",
    )
