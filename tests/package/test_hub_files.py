"""Which files of a repository are fetched, told by their names."""

import pytest

from tokenmill.core.errors import InvalidOption, UnsupportedModel
from tokenmill.package.hub_files import package_folders, pick_files
from tokenmill.package.load_options import LoadOptions

EXPORT = (
    ".gitattributes",
    "README.md",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
    "model.safetensors",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/model_fp16.onnx",
    "onnx/model_fp16.onnx_data",
    "onnx/model_fp16.onnx_data_1",
    "onnx/model_q4.onnx",
    "onnx/model_q4f16.onnx",
    "onnx/model_quantized.onnx",
    "onnx/more/model_q4.onnx",
)
TEXT = tuple(name for name in EXPORT[2:8])


def picked(names, variant=None, *providers):
    return pick_files(names, LoadOptions(variant=variant, providers=providers))


def graphs(names, variant=None, *providers):
    return [name for name in picked(names, variant, *providers) if name not in TEXT]


def test_an_export_is_fetched_in_one_precision_with_its_texts():
    assert picked(EXPORT) == (*TEXT, "onnx/model.onnx", "onnx/model.onnx_data")


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("q4", ["onnx/model_q4.onnx"]),
        ("q4f16", ["onnx/model_q4f16.onnx"]),
        ("fp32", ["onnx/model.onnx", "onnx/model.onnx_data"]),
        ("q8", ["onnx/model_quantized.onnx"]),
        ("fp16", [name for name in EXPORT if "fp16.onnx" in name]),
        ("onnx/model_q4.onnx", ["onnx/model_q4.onnx"]),
    ],
)
def test_a_variant_is_fetched_with_its_own_weights(variant, expected):
    assert graphs(EXPORT, variant) == expected


def test_the_provider_decides_as_it_does_for_a_directory():
    names = [name for name in EXPORT if "model.onnx" not in name]
    assert graphs(names) == ["onnx/model_q4.onnx"]
    assert graphs(names, None, "cuda") == [name for name in EXPORT if "fp16.onnx" in name]


def test_a_decoder_with_its_past_goes_before_its_parts():
    names = ["config.json", "decoder_model.onnx", "decoder_model_merged.onnx"]
    assert graphs([*names, "decoder_with_past_model.onnx"]) == ["decoder_model_merged.onnx"]


def test_weights_of_nobodys_name_belong_to_the_graph_beside_them():
    names = ["config.json", "model.onnx", "weights.data", "onnx/other.data", "picture.png"]
    assert graphs(names) == ["model.onnx", "weights.data"]


def test_a_precision_that_is_not_there_is_refused_before_anything_is_fetched():
    with pytest.raises(InvalidOption, match=r"variant is 'q2': there are onnx/model\.onnx"):
        picked(EXPORT, "q2")


def test_an_export_of_several_graphs_is_refused_before_anything_is_fetched():
    with pytest.raises(UnsupportedModel, match=r"vision_encoder\.onnx is there"):
        picked([*EXPORT, "onnx/vision_encoder.onnx"])


@pytest.mark.parametrize(
    "name",
    [
        "genai_config.json",
        "inference_metadata.yaml",
        "inference_metadata.yml",
        "inference_metadata.json",
        "manifest.json",
    ],
)
def test_a_package_at_the_root_is_fetched_whole(name):
    names = (name, "model.onnx", "model.onnx.data", "deep/part.bin", "config.json")
    assert picked(names) == names


FOLDERS = (
    "README.md",
    "config.json",
    "cpu/int4/genai_config.json",
    "cpu/int4/model.onnx",
    "cuda/int4/genai_config.json",
    "cuda/int4/model.onnx",
    "cuda/int4/model.onnx.data",
)


def test_one_of_several_folders_is_fetched_by_the_end_of_its_path():
    assert picked(FOLDERS, "cuda/int4") == ("config.json", *FOLDERS[4:])
    assert picked(FOLDERS, "cpu/int4") == ("config.json", *FOLDERS[2:4])
    assert picked(FOLDERS[:4]) == ("config.json", *FOLDERS[2:4])
    for variant, words in ((None, "holds 2 models"), ("int4", "variant is 'int4'"), ("x", "'x'")):
        with pytest.raises(InvalidOption, match=f"{words}: there are cpu/int4, cuda/int4"):
            picked(FOLDERS, variant)


def test_one_of_several_gguf_files_is_fetched():
    names = ("README.md", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf")
    assert picked(names, "q8_0") == ("m-Q8_0.gguf",)
    assert picked(names, "M-Q4_0.gguf") == ("m-Q4_0.gguf",)
    assert picked(names[:2]) == ("m-Q4_0.gguf",)
    assert picked(("m-BF16.gguf", "m-F16.gguf"), "F16") == ("m-F16.gguf",)
    assert picked(("m.Q4_0.gguf", "m.Q4_0_4_4.gguf"), "Q4_0") == ("m.Q4_0.gguf",)
    assert picked(("Q4_0/m.gguf", "Q8_0/m.gguf"), "Q8_0") == ("Q8_0/m.gguf",)
    for variant, words in ((None, "holds 3 GGUF files"), ("q4", "variant is 'q4'")):
        with pytest.raises(InvalidOption, match=f"{words}: the repository has m-Q4_0"):
            picked(names, variant)


def test_a_repository_of_another_kind_is_fetched_whole():
    names = ("tokenizer.json", "a.onnx", "b/c.bin")
    assert picked(names) == names


def test_folders_with_a_document_are_found():
    assert package_folders(["a/b/genai_config.json", "c/inference_metadata.yml", "d/x.onnx"]) == [
        "a/b",
        "c",
    ]
    assert package_folders(["genai_config.json", "a/genai_config.json"]) == ["", "a"]
    assert package_folders(["manifest.json", "a/genai_config.json"]) == [""]
