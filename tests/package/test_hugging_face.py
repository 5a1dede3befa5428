import json

import onnx
import pytest

from support.tiny_plain import PlainSpec, PortNames, config_json, renamed, write_plain
from tokenmill.core.errors import InvalidOption, InvalidPackage, UnsupportedModel
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import PackageForm, Role, StateLayout


def changed(**fields):
    """The configuration with other fields; ... takes one out."""
    config = config_json(PlainSpec()) | fields
    return {name: value for name, value in config.items() if value is not ...}


PLAIN, CHOOSE = PlainSpec(), LoadOptions()


def load(directory, spec=PLAIN, options=CHOOSE, **documents):
    return load_package(write_plain(directory, spec, **documents), options)


def test_an_export_is_read_whole(tmp_path):
    package = load(tmp_path)
    assert package.form is PackageForm.HUGGING_FACE
    assert package.state.layout is StateLayout.PLAIN
    assert (package.context_length, package.vocab_size, package.hidden_size) == (128, 64, 32)
    assert package.text.eos_token_ids == {2}
    assert (package.text.bos_token_id, package.text.add_bos) == (1, False)
    assert package.decoder.file == tmp_path / "model.onnx"
    assert (package.choices, package.losses, package.ignored) == ((), (), ())


def test_ports_without_telling_names_are_resolved(tmp_path):
    package = load(tmp_path, renamed(PlainSpec()))
    assert package.decoder.port(Role.PAST_VALUE, 1).name == "e1"


def test_a_merged_export_has_its_branch_input(tmp_path):
    write_plain(tmp_path, PlainSpec(merged=True), file="decoder_model_merged.onnx")
    package = load_package(tmp_path)
    assert package.decoder.port(Role.USE_CACHE_BRANCH).dtype == "bool"


def test_the_ends_of_a_text_are_those_that_any_file_tells(tmp_path):
    package = load(
        tmp_path,
        config=changed(eos_token_id=[5, 6]),
        generation_config={"eos_token_id": [6, 7]},
        tokenizer_config={"eos_token": "</s>"},
    )
    assert package.text.eos_token_ids == {2, 5, 6, 7}


def test_a_padding_token_of_minus_one_is_none(tmp_path):
    assert load(tmp_path, config=changed(pad_token_id=-1)).text.pad_token_id is None


# Generation defaults


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, (None, None, None)),
        ({"do_sample": False, "temperature": 0.7}, (0.0, None, None)),
        ({"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}, (0.7, 20, 0.8)),
        ({"temperature": 0.7}, (0.7, None, None)),
    ],
)
def test_generation_defaults(tmp_path, document, expected):
    defaults = load(tmp_path, generation_config=document).defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == expected


def test_a_limit_of_new_tokens_is_a_default(tmp_path):
    assert load(tmp_path, generation_config={"max_new_tokens": 9}).defaults.max_tokens == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_beams", 4),
        ("suppress_tokens", [3]),
        ("forced_eos_token_id", 2),
        ("guidance_scale", 1.5),
        ("typical_p", 0.5),
        ("bad_words_ids", [[3]]),
    ],
)
def test_what_would_change_the_output_is_refused_or_lost_on_request(tmp_path, field, value):
    with pytest.raises(UnsupportedModel, match=f"generation_config.json {field} is "):
        load(tmp_path, generation_config={field: value})
    package = load_package(tmp_path, LoadOptions(lossy=True))
    assert [one.field for one in package.losses] == [f"generation_config.json {field}"]


def test_fields_that_change_nothing_are_not_refused(tmp_path):
    document = {"num_beams": 1, "suppress_tokens": None, "guidance_scale": 1.0, "typical_p": 1}
    package = load(tmp_path, generation_config=document)
    assert (package.losses, package.ignored) == ((), ())


def test_unknown_and_unused_fields_are_listed(tmp_path):
    document = {"colour": "blue", "transformers_version": "4", "repetition_penalty": 1.1}
    ignored = load(tmp_path, generation_config=document).ignored
    assert {one.field: one.why for one in ignored} == {
        "generation_config.json colour": "not known to this version",
        "generation_config.json repetition_penalty": "not executed by this version",
    }


# Geometry


def test_sizes_come_from_the_configuration_where_the_graph_is_silent(tmp_path):
    package = load(tmp_path, PlainSpec(symbolic_heads=True))
    assert [(one.num_kv_heads, one.head_dim) for one in package.state.attention] == [(2, 8)] * 2


def test_a_head_dimension_that_follows_from_others_is_a_guess(tmp_path):
    config = changed(head_dim=..., num_attention_heads=4, hidden_size=32)
    spec = PlainSpec(symbolic_heads=True)
    assert load(tmp_path, spec, config=config).state.attention[0].head_dim == 8
    assert load(tmp_path, config=config | {"hidden_size": 64}).state.attention[0].head_dim == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_key_value_heads": 4}, "num_kv_heads is 4: the state of model.onnx has 2"),
        ({"head_dim": 16}, "head_dim is 16: the state of model.onnx has 8"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3: model.onnx has the state of 2 layers"),
        ({"vocab_size": 65}, "vocab_size is 65: the port 'logits' of model.onnx has 64 logits"),
        ({"layer_types": ["full_attention"]}, "layer_types: it has 1 layers"),
        ({"num_hidden_layers": "two"}, "is not a whole number"),
        ({"max_position_embeddings": ...}, "max_position_embeddings: it is missing"),
    ],
)
def test_a_configuration_that_contradicts_the_graph_is_refused(tmp_path, fields, message):
    with pytest.raises(InvalidPackage, match=message):
        load(tmp_path, config=changed(**fields))


def test_layers_that_share_their_state_are_counted(tmp_path):
    package = load(tmp_path, config=changed(num_hidden_layers=3, num_kv_shared_layers=1))
    assert len(package.state.attention) == 2


def test_names_that_other_configurations_use_are_read(tmp_path):
    config = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 100}
    spec = PlainSpec(kv_heads=4, symbolic_heads=True)
    package = load(tmp_path, spec, config=config)
    assert (package.context_length, package.hidden_size) == (100, 32)
    assert package.state.attention[0].num_kv_heads == 4


def test_a_table_of_positions_limits_the_context(tmp_path):
    package = load(
        tmp_path,
        PlainSpec(positions="table", context=128),
        config=changed(max_position_embeddings=4096),
    )
    assert package.context_length == 128
    (note,) = package.ignored
    assert note.field == "config.json max_position_embeddings"
    assert "the graph allows 128: the rows of the table of positions" in note.why


def test_a_window_that_the_operators_do_not_tell_is_noted(tmp_path):
    (note,) = load(tmp_path, config=changed(sliding_window=16)).ignored
    assert (note.field, note.value) == ("config.json sliding_window", "16")
    assert load(tmp_path, config=changed(sliding_window=16, use_sliding_window=False)).ignored == ()


def test_a_decoder_described_inside_text_config_is_read(tmp_path):
    inner = config_json(PlainSpec())
    package = load(tmp_path, config={"text_config": inner, "eos_token_id": 9})
    assert (package.context_length, package.text.eos_token_ids) == (128, {2, 9})


# What is not a single decoder


def test_an_encoder_decoder_is_refused_by_the_field(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"config.json is_encoder_decoder is true"):
        load(tmp_path, config=changed(is_encoder_decoder=True))


@pytest.mark.parametrize("name", ["encoder_model", "vision_encoder_q4", "embed_tokens_fp16"])
def test_a_model_of_several_graphs_is_refused_by_the_file(tmp_path, name):
    write_plain(tmp_path)
    (tmp_path / f"{name}.onnx").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=f"{name}.onnx is there"):
        load_package(tmp_path)


def test_an_export_without_past_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(UnsupportedModel, match="Export the model with past keys and values"):
        load(tmp_path, PlainSpec(past=False))


# Which file


def several(directory, *names, spec=PLAIN):
    for name in names:
        write_plain(directory, spec, file=name)
    return directory


def test_full_precision_is_taken_and_the_others_are_listed(tmp_path):
    several(tmp_path, "onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_fp16.onnx")
    package = load_package(tmp_path)
    (choice,) = package.choices
    assert package.decoder.file == tmp_path / "onnx" / "model.onnx"
    assert (choice.what, choice.chosen) == ("file", "onnx/model.onnx")
    assert choice.why == "full precision: the model's own results"
    assert choice.others == {
        "onnx/model_fp16.onnx": "16-bit floating point; --variant fp16 takes it",
        "onnx/model_q4.onnx": "4-bit weights; --variant q4 takes it",
    }


@pytest.mark.parametrize(
    ("providers", "chosen"),
    [((), "model_q4.onnx"), (("cpu",), "model_q4.onnx"), (("cuda",), "model_fp16.onnx")],
)
def test_without_full_precision_the_provider_decides(tmp_path, providers, chosen):
    several(tmp_path, "model_q4.onnx", "model_fp16.onnx", "model_quantized.onnx")
    package = load_package(tmp_path, LoadOptions(providers=providers))
    assert package.decoder.file.name == chosen


@pytest.mark.parametrize(
    ("variant", "chosen"),
    [
        ("q4", "onnx/model_q4.onnx"),
        ("_q4", "onnx/model_q4.onnx"),
        ("Q4", "onnx/model_q4.onnx"),
        ("q8", "onnx/model_quantized.onnx"),
        ("fp32", "onnx/model.onnx"),
        ("model_q4", "onnx/model_q4.onnx"),
        ("model_q4.onnx", "onnx/model_q4.onnx"),
        ("onnx/model_q4.onnx", "onnx/model_q4.onnx"),
    ],
)
def test_a_variant_is_an_ending_a_name_or_a_path(tmp_path, variant, chosen):
    several(tmp_path, "onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_quantized.onnx")
    package = load_package(tmp_path, LoadOptions(variant=variant))
    assert package.choices[0].chosen == chosen
    assert package.choices[0].why == f"the variant {variant!r} was asked for"


def test_a_variant_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path):
    several(tmp_path, "model.onnx", "model_q4.onnx")
    with pytest.raises(InvalidOption) as caught:
        load_package(tmp_path, LoadOptions(variant="fp16"))
    assert "variant is 'fp16': there are model.onnx, model_q4.onnx" in str(caught.value)


def test_a_graph_without_state_gives_way_to_one_with_state(tmp_path):
    several(tmp_path, "model.onnx", spec=PlainSpec(past=False))
    several(tmp_path, "decoder_model_merged.onnx", spec=PlainSpec(merged=True))
    (choice,) = load_package(tmp_path).choices
    assert choice.chosen == "decoder_model_merged.onnx"
    assert choice.others == {"model.onnx": "it keeps no state"}


def test_of_one_precision_the_plainest_name_is_taken(tmp_path):
    several(tmp_path, "decoder_with_past_model.onnx", "model.onnx")
    several(tmp_path, "decoder_model_merged.onnx", spec=PlainSpec(merged=True))
    (choice,) = load_package(tmp_path).choices
    assert choice.chosen == "model.onnx"
    merged = "model.onnx is preferred; --variant decoder_model_merged.onnx takes it"
    assert choice.others["decoder_model_merged.onnx"] == merged


def test_the_decoder_with_past_is_taken_where_there_is_no_merged_one(tmp_path):
    several(tmp_path, "decoder_model.onnx", spec=PlainSpec(past=False))
    several(tmp_path, "decoder_with_past_model.onnx")
    assert load_package(tmp_path).decoder.file.name == "decoder_with_past_model.onnx"


def test_the_fingerprint_knows_the_graph_and_the_configuration(tmp_path):
    first = load(tmp_path / "a").fingerprint
    assert load(tmp_path / "b").fingerprint == first
    assert load(tmp_path / "c", PlainSpec(seed=1)).fingerprint != first
    assert load(tmp_path / "d", config=changed(max_position_embeddings=64)).fingerprint != first


def test_weights_beside_the_graph_must_be_there(tmp_path):
    write_plain(tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.save(
        model,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=64,
    )
    assert load_package(tmp_path).decoder.weight_bytes > 0
    (tmp_path / "model.onnx_data").unlink()
    with pytest.raises(InvalidPackage, match=r"model\.onnx_data"):
        load_package(tmp_path)


def test_a_configuration_that_is_no_object_is_refused(tmp_path):
    write_plain(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(InvalidPackage, match="not an object"):
        load_package(tmp_path)


def test_an_export_without_position_ids_and_of_other_integers_is_read(tmp_path):
    spec = PlainSpec(names=PortNames(position_ids=None), ids_dtype="int32", dtype="float16")
    package = load(tmp_path, spec)
    assert package.decoder.find(Role.POSITION_IDS) is None
    assert package.decoder.port(Role.INPUT_IDS).dtype == "int32"
    assert package.state.attention[0].dtype == "float16"
