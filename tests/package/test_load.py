import json
from pathlib import Path

import pytest

from support.tiny_genai import genai_config, tokenizer_json, write_genai
from support.tiny_gguf import write_tiny_gguf
from support.tiny_onnx import TinySpec
from tokenmill.core.errors import CorruptFile, InvalidOption, InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.importer import import_gguf
from tokenmill.package.load import FORMS, LoadOptions, load_package
from tokenmill.package.model_package import PackageForm, Role, StateLayout


def changed(change, spec=None):
    """The tiny configuration after a change: (dotted path, value), or a path to remove."""
    document = genai_config(spec) if spec else genai_config()
    for path, value in change.items():
        *parents, last = path.split(".")
        section = document
        for name in parents:
            section = section.setdefault(name, {})
        if value is ...:
            del section[last]
        else:
            section[last] = value
    return document


def load(directory, change, **documents):
    return load_package(write_genai(directory, config=changed(change), **documents))


def reasons(package):
    return {item.field: (item.value, item.why) for item in package.ignored}


def test_a_tiny_directory_is_understood(tmp_path):
    package = load_package(write_genai(tmp_path))
    assert package.form is PackageForm.GENAI
    assert package.root == tmp_path
    assert (package.context_length, package.vocab_size, package.hidden_size) == (256, 96, 64)
    assert package.state.layout is StateLayout.SHARED_BUFFER
    assert package.state.bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert package.text.eos_token_ids == {2}
    assert package.defaults.temperature == 0.0
    assert package.precision == "float32"
    assert package.ignored == ()


def test_every_port_has_a_role_and_the_field_that_gave_it(tmp_path):
    bindings = load_package(write_genai(tmp_path)).decoder.bindings
    why = {(b.port.name, b.role, b.layer): b.why for b in bindings}
    inputs, outputs = "genai_config.json model.decoder.inputs", "genai_config.json model.decoder"
    assert why["input_ids", Role.INPUT_IDS, None] == f"{inputs}.input_ids"
    assert why["past_key_values.1.value", Role.PAST_VALUE, 1] == f"{inputs}.past_value_names"
    assert why["logits", Role.LOGITS, None] == f"{outputs}.outputs.logits"
    assert len(bindings) == 3 + 8


def test_ports_that_are_not_declared_are_what_the_graph_makes_of_them(tmp_path):
    change = {"model.decoder.inputs": ..., "model.decoder.outputs": ...}
    package = load(tmp_path, change)
    assert package.decoder.port(Role.PRESENT_KEY, 1).name == "present.1.key"
    assert {(b.role.value, b.why) for b in package.decoder.bindings if b.layer in (None, 0)} == {
        ("input_ids", "structure: it indexes the embedding 'weight_5', 96 x 64"),
        (
            "attention_mask",
            "structure: int64 [batch_size, total_length] that reaches GroupQueryAttention",
        ),
        ("past_key", "the conventional name 'past_key_values.%d.key'"),
        ("past_value", "the conventional name 'past_key_values.%d.value'"),
        ("logits", "structure: the one floating output of 3 axes that is not state"),
        ("present_key", "the conventional name 'present.%d.key'"),
        ("present_value", "the conventional name 'present.%d.value'"),
    }


def test_a_port_name_that_only_looks_like_another_role_follows_the_declaration(tmp_path):
    spec = TinySpec(position_ids=True)
    inputs = {"model.decoder.inputs.position_ids": "position_ids"}
    package = load_package(write_genai(tmp_path, spec=spec, config=changed(inputs, spec)))
    assert package.decoder.port(Role.POSITION_IDS).name == "position_ids"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ...}, r"model\.decoder\.filename: it is missing"),
        ({"model": []}, r"model: \[\] is not an object"),
        ({"model.decoder.filename": "../model.onnx"}, "filename: '../model.onnx' leads out"),
        ({"model.decoder.filename": "/model.onnx"}, "filename: '/model.onnx' leads out"),
        ({"model.decoder.filename": 7}, "filename: 7 is not a string"),
        ({"model.decoder.filename": "none.onnx"}, r"cannot read .*none\.onnx"),
        ({"model.decoder.inputs.attention_mask": "mask"}, "attention_mask names 'mask': "),
        ({"model.decoder.inputs.attention_mask": ""}, "attention_mask names '': "),
        ({"model.decoder.inputs.past_key_names": "past.%s"}, "does not hold one %d"),
        ({"model.decoder.outputs.logits": "scores"}, "outputs.logits names 'scores': "),
        ({"model.decoder.outputs.present_key_names": "p.%d"}, r"called 'p\.0'"),
        ({"model.decoder.num_hidden_layers": 3}, r"called 'past_key_values\.2\.key'"),
        ({"model.decoder.num_hidden_layers": 1}, r"input 'past_key_values\.1\.key' .* no role"),
        ({"model.decoder.num_hidden_layers": 10**9}, r"called 'past_key_values\.2\.key'"),
        ({"model.decoder.num_hidden_layers": True}, "true is not a whole number"),
        ({"model.decoder.head_size": 8}, "head_size says that head_dim is 8: .* has 16"),
        ({"model.decoder.num_key_value_heads": 4}, "num_kv_heads is 4: .* has 2"),
        ({"model.vocab_size": 97}, "vocab_size is 97: .* 'logits' .* has 96"),
        ({"model.context_length": 0}, r"context_length: 0 is not from 1"),
        ({"model.context_length": ...}, r"context_length: it is missing"),
        ({"model.eos_token_id": "2"}, 'eos_token_id: "2" is not a whole number'),
        ({"model.eos_token_id": [2, 1.5]}, "eos_token_id: 1.5 is not a whole number"),
        ({"search.temperature": "hot"}, 'search.temperature: "hot" is not a number'),
        ({"search.temperature": -1}, "search.temperature: -1 is not from 0 to 100"),
        ({"search.do_sample": 1}, "search.do_sample: 1 is not true or false"),
        ({"model.decoder.session_options.provider_options": ["cuda"]}, r"provider_options\[0\]"),
    ],
)
def test_a_malformed_configuration_is_refused_with_the_field(tmp_path, change, message):
    with pytest.raises(InvalidPackage, match=message):
        load(tmp_path, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.encoder": {"filename": "e.onnx"}}, r"model\.encoder"),
        ({"model.vision": {"filename": "v.onnx"}}, r"model\.vision"),
        ({"model.speech": {"filename": "s.onnx"}}, r"model\.speech"),
        ({"model.embedding": {"filename": "e.onnx"}}, r"model\.embedding"),
        ({"model.decoder.pipeline": [{}]}, r"model\.decoder\.pipeline"),
        ({"search.num_beams": 4}, "search.num_beams is 4"),
        (
            {
                "model.decoder.inputs.attention_mask": ...,
                "model.decoder.inputs.block_table": "attention_mask",
            },
            r"inputs\.block_table names an input 'attention_mask'",
        ),
        (
            {"model.decoder.inputs.past_key_scale_names": "past_key_values.%d.key"},
            r"past_key_scale_names names an input",
        ),
        ({"model.decoder.sliding_window": {"window_size": 16}}, "slide_key_value_cache"),
        (
            {
                "model.decoder.sliding_window": {
                    "window_size": 16,
                    "slide_key_value_cache": False,
                    "slide_inputs": False,
                }
            },
            "window_size is 16 for layer 0: the graph's own attention there has no window",
        ),
    ],
)
def test_what_would_change_the_output_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(UnsupportedModel, match=message):
        load(tmp_path, change)


def test_fields_that_nobody_reads_are_listed(tmp_path):
    package = load(
        tmp_path,
        {
            "model.colour": "blue",
            "engine": {"dynamic_batching": {"block_size": 16}},
            "search.repetition_penalty": 1.5,
            "search.min_length": 3,
            "model.decoder.session_options.intra_op_num_threads": 4,
        },
    )
    unknown = "not known to this version"
    assert reasons(package) == {
        "genai_config.json model.colour": ('"blue"', unknown),
        "genai_config.json engine": ('{"dynamic_batching": {"block_size": 16}}', unknown),
        "genai_config.json search.repetition_penalty": ("1.5", "not executed by this version"),
        "genai_config.json search.min_length": ("3", "not executed by this version"),
        "genai_config.json model.decoder.session_options.intra_op_num_threads": ("4", unknown),
    }


def test_provider_options_keep_their_order_and_become_text(tmp_path):
    options = [{"cuda": {"device_id": 1, "enable": True, "name": "x"}}, {"cpu": {}}]
    package = load(tmp_path, {"model.decoder.session_options.provider_options": options})
    assert list(package.provider_options) == [
        ("cuda", {"device_id": "1", "enable": "true", "name": "x"}),
        ("cpu", {}),
    ]


def test_sampling_defaults_hold_where_sampling_is_asked_for(tmp_path):
    search = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "max_length": 64}
    package = load(tmp_path, {"search": search})
    defaults = package.defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.7, 20, 0.9)
    assert defaults.max_tokens is None
    assert set(reasons(package)) == {"genai_config.json search.max_length"}


def test_a_sidecar_says_where_weights_came_from(tmp_path):
    sidecar = {
        "format": 1,
        "fingerprint": "sha256:abc",
        "precision": "4-bit blocks of 32",
        "provenance": {"file": "x.gguf", "bytes": 7},
        "blocks": {},
        "defaults": {"temperature": 0.6, "min_p": 0.1, "repetition_penalty": 1.1},
        "warnings": ["an unknown pre-tokenizer"],
        "future": 1,
    }
    package = load(tmp_path, {}, tokenmill=sidecar)
    assert package.fingerprint == "sha256:abc"
    assert package.precision == "4-bit blocks of 32"
    assert package.provenance == {"file": "x.gguf", "bytes": "7"}
    assert (package.defaults.temperature, package.defaults.min_p) == (0.6, 0.1)
    assert reasons(package) == {
        "tokenmill.json defaults.repetition_penalty": ("1.1", "not executed by this version"),
        "tokenmill.json warnings": ("an unknown pre-tokenizer", "noted by the importer"),
        "tokenmill.json future": ("1", "not known to this version"),
    }


@pytest.mark.parametrize(
    ("sidecar", "message"),
    [
        ({}, "format: None is not a format"),
        ({"format": 2}, "format: 2 is not a format"),
        ({"format": 1, "provenance": {"a": []}}, r"provenance\.a: \[\] is not a string"),
        ({"format": 1, "defaults": {"top_p": 2}}, r"defaults\.top_p: 2 is not from 0 to 1"),
        ({"format": 1, "warnings": "x"}, "warnings: it is not a list"),
    ],
)
def test_a_malformed_sidecar_is_refused(tmp_path, sidecar, message):
    with pytest.raises(InvalidPackage, match=rf"tokenmill\.json: {message}"):
        load(tmp_path, {}, tokenmill=sidecar)


def test_a_damaged_graph_is_refused_with_the_offset(tmp_path):
    graph = write_genai(tmp_path) / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:1000])
    with pytest.raises(CorruptFile, match=r"model\.onnx is damaged at byte \d+"):
        load_package(tmp_path)


def test_weights_beside_the_graph_that_are_cut_off(tmp_path):
    data = write_genai(tmp_path, spec=TinySpec(external=True)) / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=r"of 'model\.onnx\.data', which has"):
        load_package(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff{}", "is not UTF-8"),
        (b"[1]", r"it holds \[1\], not an object"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
    ],
)
def test_a_configuration_that_is_no_json_object(tmp_path, content, message):
    (write_genai(tmp_path) / "genai_config.json").write_bytes(content)
    with pytest.raises(InvalidPackage, match=rf"genai_config\.json.*{message}"):
        load_package(tmp_path)


def test_a_package_without_a_tokenizer_loads(tmp_path):
    assert load_package(write_genai(tmp_path, tokenizer=False)).text.tokenizer_file is None


def test_the_form_is_recognised_before_the_tokenizer_is_looked_at(tmp_path):
    package = load_package(write_genai(tmp_path, manifest={"name": "an app"}))
    assert package.form is PackageForm.GENAI


@pytest.mark.parametrize(
    ("files", "form"),
    [
        ({"manifest.json": {"components": {}}, "genai_config.json": {}}, "model-package"),
        ({"inference_metadata.yaml": {}, "genai_config.json": {}}, "inference-metadata"),
        ({"inference_metadata.json": {}}, "inference-metadata"),
        ({"config.json": {}, "onnx/model_q4.onnx": {}}, "hugging-face"),
        ({"config.json": {}, "decoder_model_merged.onnx": {}}, "hugging-face"),
        ({"tokenizer.json": {}, "model.onnx": {}}, "bare-onnx"),
    ],
)
def test_a_directory_has_the_first_form_that_it_matches(tmp_path, files, form):
    for name, document in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document))
    assert next(one for one in FORMS if one.matches(tmp_path)).form.value == form


def test_beams_are_given_up_on_request_only_and_listed(tmp_path):
    package = load_package(
        write_genai(tmp_path, config=changed({"search.num_beams": 4})), LoadOptions(lossy=True)
    )
    assert [(one.field, one.value) for one in package.losses] == [
        ("genai_config.json search.num_beams", "4")
    ]


def test_a_directory_with_nothing_in_it_lists_what_was_looked_for(tmp_path):
    with pytest.raises(InvalidPackage, match=r"genai_config\.json; config\.json with"):
        load_package(tmp_path)


def test_what_is_no_directory(tmp_path):
    with pytest.raises(InvalidPackage, match="is not a directory"):
        load_package(tmp_path / "none")


def test_the_tokenizer_decides_about_bos(tmp_path):
    text = load(tmp_path, {}, tokenizer=tokenizer_json(prefix="<s>")).text
    assert (text.bos_token_id, text.add_bos) == (1, True)


def test_the_context_is_no_longer_than_the_graphs_table_of_positions(tmp_path):
    package = load(tmp_path, {"model.context_length": 4096})
    assert package.context_length == 256
    why = next(one.why for one in package.ignored if one.field.endswith("context_length"))
    assert why.startswith("the graph allows 256: the rows of the table of positions")


@pytest.mark.parametrize("form", ["llama/genai-fp32", "llama/mobius-standard"])
def test_a_variant_of_a_directory_with_one_decoder_is_refused(form):
    root = Path(__file__).parents[1] / "fixtures" / form
    with pytest.raises(InvalidOption) as caught:
        load_package(root, LoadOptions(variant="q4"))
    assert str(caught.value) == (
        f"variant is 'q4': {root} describes one decoder, model.onnx. Leave it out, or give the "
        "directory of the variant that is meant"
    )


@pytest.mark.parametrize("variant", ["model.onnx", "model", "genai-fp32", "llama/genai-fp32"])
def test_a_variant_that_chose_the_directory_or_names_its_graph_holds(variant):
    root = Path(__file__).parents[1] / "fixtures" / "llama" / "genai-fp32"
    assert load_package(root, LoadOptions(variant=variant)).vocab_size == 288


def test_a_variant_that_chose_among_gguf_files_holds_for_the_import(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.Q4_K_M.gguf")
    root = import_gguf(tmp_path / "tiny.Q4_K_M.gguf", tmp_path / "imported")
    assert load_package(root, LoadOptions(variant="Q4_K_M")).vocab_size == 288
