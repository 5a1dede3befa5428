"""Model packages: a manifest, and a variant for each kind of machine."""

import hashlib
import json
import shutil

import onnxruntime
import pytest

from support.tiny_genai import genai_config, tokenizer_json, write_genai
from tokenmill.core.errors import CorruptFile, InvalidOption, InvalidPackage, UnsupportedModel
from tokenmill.package.load import LoadOptions, load_package
from tokenmill.package.model_package import PackageForm

needs_model_packages = pytest.mark.skipif(
    not hasattr(onnxruntime, "ModelPackage"), reason="ONNX Runtime has model packages since 1.32"
)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def variants():
    return {
        "cuda": {"variant_directory": "cuda", "ep": CUDA, "device": "gpu"},
        "cpu": {"variant_directory": "cpu", "ep": CPU, "device": "cpu"},
        "cpu-small": {"variant_directory": "cpu-small", "ep": CPU},
    }


def write_package(root, *, manifest=None, tokenizer=True, **change):
    """Three variants of the tiny decoder; `change` replaces fields of the manifest."""
    for name in variants():
        write_genai(root / name, tokenizer=None if tokenizer else False)
    document = manifest or {
        "schema_version": "1.0",
        "package_name": "tiny",
        "package_version": "2.1",
        "layout": "portable",
        "components": {"decoder": {"variants": variants()}},
        "shared_assets": {},
    }
    document.update(change)
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def with_variant(**fields):
    return {"decoder": {"variants": {"cpu": {**variants()["cpu"], **fields}}}}


def test_the_first_variant_for_the_cpu_is_taken_and_the_others_have_reasons(tmp_path):
    package = load_package(write_package(tmp_path))
    assert package.form is PackageForm.MODEL_PACKAGE
    assert (package.root, package.decoder.file) == (tmp_path, tmp_path / "cpu" / "model.onnx")
    choice = package.choices[0]
    assert (choice.what, choice.chosen, choice.why) == ("variant", "cpu", "the first one for cpu")
    assert choice.others == {"cuda": "it is for cuda", "cpu-small": "cpu was taken"}
    assert package.provenance == {"package_name": "tiny", "package_version": "2.1"}


def test_providers_choose_in_their_order(tmp_path):
    write_package(tmp_path)
    for providers, chosen in ((("cuda", "cpu"), "cuda"), (("npu", "cpu"), "cpu")):
        package = load_package(tmp_path, LoadOptions(providers=providers))
        assert package.choices[0].chosen == chosen


def test_another_provider_is_never_taken_instead(tmp_path):
    write_package(tmp_path)
    with pytest.raises(UnsupportedModel, match="no variant runs on qnn: cuda: it is for cuda; cpu"):
        load_package(tmp_path, LoadOptions(providers=("qnn",)))


def test_a_variant_can_be_asked_for_by_name(tmp_path):
    package = load_package(write_package(tmp_path), LoadOptions(variant="cpu-small"))
    assert (package.choices[0].chosen, package.choices[0].why) == ("cpu-small", "it was asked for")
    with pytest.raises(InvalidOption, match="no variant 'big': the package has cuda, cpu, cpu-s"):
        load_package(tmp_path, LoadOptions(variant="big"))


def test_a_variant_for_any_provider_runs_on_each(tmp_path):
    write_package(tmp_path, components={"d": {"variants": {"cpu": {"variant_directory": "cpu"}}}})
    assert load_package(tmp_path, LoadOptions(providers=("qnn",))).choices[0].chosen == "cpu"


def test_a_component_may_be_described_in_its_own_file(tmp_path):
    write_package(tmp_path / "parts", components={})
    (tmp_path / "parts" / "manifest.json").unlink()
    (tmp_path / "parts" / "component.json").write_text(json.dumps({"variants": variants()}))
    manifest = {"schema_version": "1.3", "components": {"decoder": "parts/component.json"}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert load_package(tmp_path).decoder.file == tmp_path / "parts" / "cpu" / "model.onnx"
    manifest["components"]["decoder"] = "parts"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert load_package(tmp_path).decoder.file == tmp_path / "parts" / "cpu" / "model.onnx"


def test_a_directory_of_the_variants_name_is_found_without_a_field(tmp_path):
    write_package(tmp_path, components={"decoder": {"variants": {"cpu": {"ep": CPU}}}})
    assert load_package(tmp_path).decoder.file == tmp_path / "cpu" / "model.onnx"


def test_the_tokenizer_may_be_a_shared_asset_or_beside_the_manifest(tmp_path):
    content = json.dumps(tokenizer_json())
    line = f"{hashlib.sha256(content.encode()).hexdigest()}  tokenizer.json\n"
    name = f"sha256:{hashlib.sha256(line.encode()).hexdigest()}"
    write_package(tmp_path, tokenizer=False, shared_assets={name: "shared"})
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tokenizer.json").write_text(content)
    assert load_package(tmp_path).text.tokenizer_file == tmp_path / "shared" / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_text(content)
    assert load_package(tmp_path).text.tokenizer_file == tmp_path / "tokenizer.json"


def test_a_variants_own_tokenizer_goes_first(tmp_path):
    write_package(tmp_path)
    (tmp_path / "tokenizer.json").write_text("not read")
    assert load_package(tmp_path).text.tokenizer_file == tmp_path / "cpu" / "tokenizer.json"


@pytest.mark.parametrize("whole", [True, False])
def test_an_asset_with_another_checksum_is_refused(tmp_path, whole):
    content = b"x" * 100
    name = f"sha256:{hashlib.sha256(content).hexdigest()}"
    write_package(tmp_path, shared_assets={name: "asset.bin"})
    (tmp_path / "asset.bin").write_bytes(content if whole else content[:-1])
    if whole:
        load_package(tmp_path)
    else:
        with pytest.raises(CorruptFile, match=r"asset\.bin has another checksum.*shared_assets"):
            load_package(tmp_path)


def test_what_only_others_can_read_is_listed(tmp_path):
    fields = with_variant(compatibility_string="abc", executor_info={"nxrt": {"a": 1}})
    ignored = {
        i.field: i.value for i in load_package(write_package(tmp_path, components=fields)).ignored
    }
    place = "manifest.json components.decoder.variants.cpu"
    assert ignored[f"{place}.compatibility_string"] == "abc"
    assert ignored[f"{place}.executor_info.nxrt"] == '{"a": 1}'


REFUSED = {
    "an unknown field": ({"colour": "red"}, "colour: there is no such field in a manifest"),
    "a later major version": ({"schema_version": "2.0"}, "schema_version: it is '2.0'"),
    "no version": ({"schema_version": None}, "schema_version: it is missing"),
    "an unknown layout": ({"layout": "loose"}, "layout: 'loose' is neither"),
    "an installed layout": ({"layout": "installed"}, "layout is 'installed'"),
    "no component": ({"components": {}}, "components has 0"),
    "two components": (
        {"components": {"a": {"variants": {}}, "b": {"variants": {}}}},
        "components has 2: a, b",
    ),
    "a component that is a number": ({"components": {"a": 3}}, "components.a: 3 is not an object"),
    "a component file that is not there": (
        {"components": {"a": "x.json"}},
        "components.a: 'x.json'",
    ),
    "a component file outside": (
        {"components": {"a": "../component.json"}},
        "components.a: '../component.json' leads out",
    ),
    "no variant": ({"components": {"a": {"variants": {}}}}, "components.a.variants: there is none"),
    "an unknown field of a variant": (
        {"components": with_variant(speed=3)},
        "variants.cpu.speed: there is no such field",
    ),
    "an unknown device": (
        {"components": with_variant(device="abacus")},
        "variants.cpu.device: 'abacus' is none of",
    ),
    "a directory outside": (
        {"components": with_variant(variant_directory="../cpu")},
        "variants.cpu.variant_directory: '../cpu' leads out",
    ),
    "an absolute directory": (
        {"components": with_variant(variant_directory="/cpu")},
        "variants.cpu.variant_directory: '/cpu' leads out",
    ),
    "a directory that is not there": (
        {"components": with_variant(variant_directory="gpu")},
        "variants.cpu.variant_directory: 'gpu'",
    ),
    "a directory that is a file": (
        {"components": with_variant(variant_directory="cpu/model.onnx")},
        "'cpu/model.onnx' is not a directory",
    ),
    "a directory with an empty name": (
        {"components": with_variant(variant_directory="")},
        "variant_directory: '' is not a relative path",
    ),
    "an asset without a digest": ({"shared_assets": {"md5:1": "x"}}, "shared_assets.md5:1: an ass"),
    "an asset outside": (
        {"shared_assets": {"sha256:" + "0" * 64: "../x"}},
        "'../x' leads out of the package",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_that_cannot_be_used_is_refused_with_the_place(tmp_path, name):
    change, words = REFUSED[name]
    root = write_package(tmp_path / "package", **change)
    with pytest.raises(InvalidPackage) as raised:
        load_package(root)
    assert words in str(raised.value)


def test_a_link_out_of_the_package_is_refused(tmp_path):
    root = write_package(tmp_path / "package")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "extra.json").write_text("{}")
    link = root / "cpu" / "extra.json"
    link.symlink_to(outside / "extra.json")
    with pytest.raises(InvalidPackage, match=r"extra\.json is a link out of the package"):
        load_package(root)
    link.unlink()
    (root / "cpu" / "deep").symlink_to(outside)
    with pytest.raises(InvalidPackage, match="deep is a link out of the package"):
        load_package(root)


def test_a_variant_that_is_a_link_out_or_a_circle_is_refused(tmp_path):
    root = write_package(tmp_path / "package", components=with_variant(variant_directory="linked"))
    (root / "linked").symlink_to(tmp_path)
    with pytest.raises(InvalidPackage, match="'linked' is a link out of the package"):
        load_package(root)
    (root / "linked").unlink()
    (root / "linked").symlink_to(root / "linked")
    with pytest.raises(InvalidPackage, match="variant_directory: 'linked'"):
        load_package(root)


def test_a_model_package_inside_another_is_refused(tmp_path):
    root = write_package(tmp_path)
    (root / "cpu" / "manifest.json").write_text(json.dumps({"components": {}}))
    with pytest.raises(InvalidPackage, match="cpu holds another model package"):
        load_package(root)


def test_a_manifest_beside_another_description_is_refused(tmp_path):
    root = write_package(tmp_path)
    (root / "genai_config.json").write_text("{}")
    with pytest.raises(InvalidPackage, match=r"describes two packages.*genai_config\.json"):
        load_package(root)


def test_a_provider_has_the_devices_that_it_drives(tmp_path):
    write_package(tmp_path, components=with_variant(device="npu"))
    with pytest.raises(UnsupportedModel, match="no variant runs on cpu: cpu: it is for the device"):
        load_package(tmp_path)
    write_package(tmp_path, components=with_variant(ep="QNNExecutionProvider", device="npu"))
    package = load_package(tmp_path, LoadOptions(providers=("qnn",)))
    assert package.provider_options == (("QNNExecutionProvider", {}),)


def test_a_variant_that_is_named_may_be_for_another_provider_and_says_so(tmp_path):
    package = load_package(write_package(tmp_path), LoadOptions(variant="cuda"))
    assert package.choices[0].why == "it was asked for, though it is for cuda"
    assert package.provider_options == ((CUDA, {}),)


def test_a_variant_for_the_provider_goes_before_one_for_any(tmp_path):
    made = {"any": {"variant_directory": "cuda"}, "cpu": variants()["cpu"]}
    write_package(tmp_path, components={"d": {"variants": made}})
    assert load_package(tmp_path).choices[0].chosen == "cpu"


def test_variants_that_are_not_taken_need_not_be_there(tmp_path):
    root = write_package(tmp_path)
    shutil.rmtree(root / "cuda")
    assert load_package(root).choices[0].chosen == "cpu"
    with pytest.raises(InvalidPackage, match=r"variants\.cuda\.variant_directory: 'cuda'"):
        load_package(root, LoadOptions(variant="cuda"))


def test_fields_of_a_newer_minor_version_are_listed(tmp_path):
    root = write_package(tmp_path, schema_version="1.7", colour="red")
    ignored = {item.field: item.why for item in load_package(root).ignored}
    assert ignored["manifest.json colour"] == "of a newer schema than this version knows"


def test_what_a_variant_says_to_the_runtime_is_used_or_listed(tmp_path):
    told = {
        "model_file": "model.onnx",
        "session_options": {"session.intra_op_thread_count": "1"},
        "provider_options": {"arena": "small"},
    }
    root = write_package(tmp_path, components=with_variant(executor_info={"ort": "ort.json"}))
    (root / "cpu" / "ort.json").write_text(json.dumps(told))
    package = load_package(root)
    assert package.provider_options == ((CPU, {"arena": "small"}),)
    ignored = [item.field for item in package.ignored]
    assert "ort.json session_options.session.intra_op_thread_count" in ignored


def test_the_runtimes_graph_is_taken_where_no_document_names_one(tmp_path):
    root = write_package(
        tmp_path, components=with_variant(executor_info={"ort": {"model_file": "b.onnx"}})
    )
    (root / "cpu" / "genai_config.json").unlink()
    (root / "cpu" / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    shutil.copy(root / "cpu" / "model.onnx", root / "cpu" / "b.onnx")
    assert load_package(root).decoder.file == root / "cpu" / "b.onnx"


EXECUTORS = {
    "another graph": ({"model_file": "b.onnx"}, "model_file: 'b.onnx' is not 'model.onnx'"),
    "a graph that is missing": ({"model_file": "c.onnx"}, "model_file: 'c.onnx': No such file"),
    "a graph outside": ({"model_file": "../b.onnx"}, "model_file: '../b.onnx' leads out"),
    "a shared graph": ({"model_file": "sha256:00/b.onnx"}, "model_file: a graph that is a shared"),
    "a graph that is a number": ({"model_file": 3}, "ort.model_file: 3 is not a string"),
    "weights elsewhere": (
        {"session_options": {"session.model_external_initializers_file_folder_path": "w"}},
        "session_options.session.model_external_initializers_file_folder_path: weights",
    ),
    "a file that is missing": ("ort.json", "executor_info.ort: 'ort.json': No such file"),
    "a file outside": ("/ort.json", "executor_info.ort: '/ort.json' leads out"),
    "a list": ([], "executor_info.ort: [] is not an object"),
}


@pytest.mark.parametrize("name", EXECUTORS)
def test_what_the_runtime_cannot_be_told_is_refused_with_the_place(tmp_path, name):
    told, words = EXECUTORS[name]
    root = write_package(tmp_path, components=with_variant(executor_info={"ort": told}))
    (root / "cpu" / "b.onnx").write_bytes(b"")
    with pytest.raises(InvalidPackage) as raised:
        load_package(root)
    assert words in str(raised.value)


def shared_tokenizer(root, tmp_path):
    """Lets ONNX Runtime's own library put a tokenizer with a template among the assets."""
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for name in ("tokenizer.json", "a-b", "a/c"):
        (source / name).write_text(json.dumps(tokenizer_json()))
    package = onnxruntime.ModelPackage.open(str(root))
    address = package.add_shared_asset(str(source))
    package.commit()
    package.close()
    return address


@needs_model_packages
def test_assets_that_onnx_runtime_wrote_are_found_and_whole(tmp_path):
    root = write_package(tmp_path / "package", tokenizer=False)
    address = shared_tokenizer(root, tmp_path)
    asset = root / "shared_assets" / address.replace(":", "-")
    assert load_package(root).text.tokenizer_file == asset / "tokenizer.json"
    (asset / "a-b").write_text("changed")
    with pytest.raises(CorruptFile, match=r"sha256-\w+ has another checksum"):
        load_package(root)


@needs_model_packages
def test_a_variants_configuration_may_name_the_tokenizers_directory(tmp_path):
    root = write_package(tmp_path / "package", tokenizer=False)
    address = shared_tokenizer(root, tmp_path)
    (root / "tokenizer.json").write_text("not read")
    config = genai_config()

    def load(named):
        config["model"]["tokenizer_dir"] = named
        (root / "cpu" / "genai_config.json").write_text(json.dumps(config))
        return load_package(root)

    package = load(address)
    asset = root / "shared_assets" / address.replace(":", "-")
    assert package.text.tokenizer_file == asset / "tokenizer.json"
    assert not any("tokenizer_dir" in item.field for item in package.ignored)
    for named, words in (
        ("sha256:" + "0" * 64, "the package has no shared asset sha256:0000"),
        (f"{address}/../x", "'../x' leads out"),
        (f"{address}/tokenizer.json", "is not a directory"),
        ("/etc", "'/etc' leads out"),
    ):
        with pytest.raises(InvalidPackage) as raised:
            load(named)
        assert f"model.tokenizer_dir: {words}" in str(raised.value) or words in str(raised.value)


@needs_model_packages
def test_onnx_runtime_reads_the_package_and_takes_the_same_variant(tmp_path):
    root = write_package(tmp_path)
    context = onnxruntime.ModelPackageContext(str(root))
    assert context.get_variant_names("decoder") == ["cuda", "cpu", "cpu-small"]
    session_options = onnxruntime.SessionOptions()
    session_options.add_provider(CPU, {})
    chosen = context.select_component(
        "decoder", onnxruntime.ModelPackageOptions(session_options)
    ).get_selected_variant_name()
    assert chosen == load_package(root).choices[0].chosen


def test_a_name_may_also_choose_inside_the_variant(tmp_path):
    root = write_package(tmp_path)
    (root / "cpu" / "genai_config.json").unlink()
    (root / "cpu" / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    shutil.copy(root / "cpu" / "model.onnx", root / "cpu" / "other.onnx")
    package = load_package(root, LoadOptions(variant="cpu/other.onnx"))
    assert package.decoder.file == root / "cpu" / "other.onnx"
    assert [choice.chosen for choice in package.choices] == ["cpu", "other.onnx"]
