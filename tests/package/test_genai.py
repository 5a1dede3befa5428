"""Packages that cannot work are refused with the place named; made from the real one."""

import json
import shutil

import pytest

from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.load import load_package
from tokenmill.package.model_package import Role, StateLayout

pytestmark = pytest.mark.model


@pytest.fixture
def copy(smollm2, tmp_path):
    """A copy whose configuration can be edited; the weights are linked."""
    root = tmp_path / "model"
    root.mkdir()
    for file in smollm2.iterdir():
        if file.name == "model.onnx.data":
            (root / file.name).hardlink_to(file)
        else:
            shutil.copy(file, root)
    return root


def edit(root, change, name="genai_config.json"):
    file = root / name
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def test_a_sound_package_is_understood(smollm2):
    package = load_package(smollm2)
    assert (package.context_length, package.vocab_size) == (8192, 49152)
    assert package.state.layout is StateLayout.SHARED_BUFFER
    assert len(package.state.attention) == 30
    assert package.state.bytes_per_token == 46080
    assert package.text.eos_token_ids == {0, 2}
    assert package.text.chat_template is not None
    assert package.defaults.temperature == 0.0
    assert package.decoder.port(Role.LOGITS).shape[-1] == 49152
    assert package.decoder.port(Role.PAST_KEY, 29).name == "past_key_values.29.key"
    assert all(binding.why for binding in package.decoder.bindings)


def decoder(document):
    return document["model"]["decoder"]


CHANGES = {
    "logits renamed": (
        lambda d: decoder(d)["outputs"].update(logits="scores"),
        "no output called 'scores'",
    ),
    "input renamed": (
        lambda d: decoder(d)["inputs"].update(input_ids="ids"),
        "no input called 'ids'",
    ),
    "too many layers": (
        lambda d: decoder(d).update(num_hidden_layers=31),
        r"past_key_values\.30\.key",
    ),
    "too few layers": (lambda d: decoder(d).update(num_hidden_layers=29), "has no role"),
    "layers missing": (lambda d: decoder(d).pop("num_hidden_layers"), "num_hidden_layers"),
    "head size": (lambda d: decoder(d).update(head_size=32), "head_size says that head_dim is 32"),
    "heads": (
        lambda d: decoder(d).update(num_key_value_heads=9),
        "num_key_value_heads says that num_kv_heads is 9",
    ),
    "no template mark": (
        lambda d: decoder(d)["inputs"].update(past_key_names="past"),
        "does not hold one %d",
    ),
    "file missing": (lambda d: decoder(d).update(filename="other.onnx"), r"other\.onnx"),
    "file unnamed": (lambda d: decoder(d).pop("filename"), "decoder.filename"),
    "vocabulary": (lambda d: d["model"].update(vocab_size=50000), "vocab_size is 50000"),
    "context": (lambda d: d["model"].pop("context_length"), "context_length"),
    "wrong type": (lambda d: d["model"].update(context_length="long"), "context_length"),
    "decoder a list": (lambda d: d["model"].update(decoder=[]), "model.decoder"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_broken_configuration_is_refused_by_the_place(copy, name):
    change, message = CHANGES[name]
    edit(copy, change)
    with pytest.raises(InvalidPackage, match=message):
        load_package(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(vision={"filename": "v.onnx"}), "model.vision"),
        (lambda d: decoder(d).update(pipeline=[{}]), "pipeline"),
        (lambda d: d["search"].update(num_beams=4), "num_beams is 4"),
    ],
)
def test_what_would_change_the_output_is_refused(copy, change, message):
    edit(copy, change)
    with pytest.raises(UnsupportedModel, match=message):
        load_package(copy)


def test_what_is_not_used_is_listed_with_a_reason(copy):
    edit(copy, lambda d: d["search"].update(repetition_penalty=1.2))
    edit(copy, lambda d: d["model"].update(colour="blue"))
    ignored = {item.field: (item.value, item.why) for item in load_package(copy).ignored}
    assert ignored["genai_config.json search.repetition_penalty"][0] == "1.2"
    assert ignored["genai_config.json model.colour"] == ('"blue"', "not known to this version")


def test_text_that_is_no_json_is_refused(copy):
    (copy / "genai_config.json").write_text("{")
    with pytest.raises(InvalidPackage, match=r"genai_config\.json is not valid JSON"):
        load_package(copy)


def test_truncated_weights_are_found_before_loading(copy):
    (copy / "model.onnx.data").unlink()
    (copy / "model.onnx.data").write_bytes(b"short")
    with pytest.raises(InvalidPackage, match=r"they end at byte \d+ of 'model.onnx.data'"):
        load_package(copy)


def test_a_truncated_graph_is_refused_with_the_offset(copy):
    file = copy / "model.onnx"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InvalidPackage, match="damaged at byte"):
        load_package(copy)


def test_a_package_without_a_tokenizer_loads_and_has_none(copy):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (copy / name).unlink()
    text = load_package(copy).text
    assert (text.tokenizer_file, text.chat_template) == (None, None)
