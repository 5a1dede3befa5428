import pytest

from tokenmill.core.errors import InvalidOption
from tokenmill.package.catalogue import catalogue_file, read_catalogue
from tokenmill.package.catalogue_entry import CatalogueEntry, HubEntry, Part, UrlPart
from tokenmill.package.catalogue_file import read_catalogue_file

DIGEST = "0123456789abcdef" * 4

GOOD = f"""
[mine]
url = "https://example.org/models/my%20model.gguf?download=1"
sha256 = "{DIGEST.upper()}"

[two]
title = "Two halves"
url = ["http://127.0.0.1:8000/a", "http://localhost/b"]
file = "whole.gguf"
sha256 = "{DIGEST}"
size = 10

[packed]
parts = [{{wheel = "some-wheel==1.0", member = "data/part.gguf"}}]
sha256 = "{DIGEST}"

[repository]
hub = "org/name"
revision = "v2"
files = ["onnx/*", "*.json"]
variant = "q4"

[smollm2]
hub = "org/other"
files = "*.onnx"
"""


def read(tmp_path, text):
    file = tmp_path / "catalogue.toml"
    file.write_text(text)
    return read_catalogue_file(file)


def test_each_kind_of_source_is_read(tmp_path):
    assert read(tmp_path, GOOD) == {
        "mine": CatalogueEntry(
            "mine", "my model.gguf", "my model.gguf", DIGEST, 0,
            (UrlPart("https://example.org/models/my%20model.gguf?download=1"),),
        ),
        "two": CatalogueEntry(
            "two", "Two halves", "whole.gguf", DIGEST, 10,
            (UrlPart("http://127.0.0.1:8000/a"), UrlPart("http://localhost/b")),
        ),
        "packed": CatalogueEntry(
            "packed", "part.gguf", "part.gguf", DIGEST, 0,
            (Part("some-wheel==1.0", "data/part.gguf"),),
        ),
        "repository": HubEntry(
            "repository", "org/name", "org/name", "v2", ("onnx/*", "*.json"), "q4"
        ),
        "smollm2": HubEntry("smollm2", "org/other", "org/other", None, ("*.onnx",)),
    }  # fmt: skip


def test_the_users_file_is_laid_over_the_built_in_one(tmp_path):
    (tmp_path / "tokenmill").mkdir()
    (tmp_path / "tokenmill" / "catalogue.toml").write_text(GOOD)
    catalogue = read_catalogue({"XDG_CONFIG_HOME": str(tmp_path)})
    assert catalogue["smollm2"].repository == "org/other"
    assert catalogue["mine"].sha256 == DIGEST
    assert catalogue["qwen2.5-coder-0.5b"].size == 491400064
    assert read_catalogue({"XDG_CONFIG_HOME": str(tmp_path / "none")})["smollm2"].size == 98362432


def test_the_users_file_lies_beside_the_configuration():
    assert str(catalogue_file({"XDG_CONFIG_HOME": "/c"})) == "/c/tokenmill/catalogue.toml"
    assert str(catalogue_file({"TOKENMILL_CONFIG": "/etc/mill.toml"})) == "/etc/catalogue.toml"


URL = f'url = "https://example.org/a.gguf"\nsha256 = "{DIGEST}"\n'

WRONG = {
    "[a": ("cannot be read", ""),
    "a = 3": ("a", "it is not a table"),
    '["a b"]\nhub = "o/n"': ("a b", "a name has letters"),
    '["../a"]\nhub = "o/n"': ("../a", "a name has letters"),
    "[a]": ("a", "it has none of them"),
    f'[a]\nhub = "o/n"\n{URL}': ("a", "it has url and hub"),
    f"[a]\n{URL}color = 1": ("a.color", "there is no such field beside url"),
    '[a]\nhub = "o/n"\nsha256 = "0"': ("a.sha256", "there is no such field beside hub"),
    '[a]\nhub = "name"': ("a.hub", "'name' is not of the form org/name"),
    "[a]\nhub = 3": ("a.hub", "3 is not a text"),
    '[a]\nhub = "o/n"\nrevision = 2': ("a.revision", "2 is not a text"),
    '[a]\nhub = "o/n"\nvariant = 4': ("a.variant", "4 is not a text"),
    '[a]\nhub = "o/n"\nfiles = [1]': ("a.files", "[1] is not a list of texts"),
    '[a]\nurl = "https://example.org/a"': ("a.sha256", "it must be the 64"),
    '[a]\nurl = "https://example.org/a"\nsha256 = "12"': ("a.sha256", "it must be the 64"),
    f"[a]\nurl = []\nsha256 = '{DIGEST}'": ("a.url", "it is empty"),
    f"[a]\nurl = 'http://example.org/a'\nsha256 = '{DIGEST}'": ("a.url", "is http, which only"),
    f"[a]\nurl = 'file:///etc/passwd'\nsha256 = '{DIGEST}'": ("a.url", "is not an https address"),
    f"[a]\nurl = 'https://[x/a'\nsha256 = '{DIGEST}'": ("a.url", "is no address"),
    f"[a]\n{URL}size = -1": ("a.size", "-1 is not a number of bytes"),
    f"[a]\n{URL}size = true": ("a.size", "True is not a number of bytes"),
    f"[a]\n{URL}file = '../a'": ("a.file", "'../a' is not the name of a file"),
    f"[a]\n{URL}file = '.hidden'": ("a.file", "'.hidden' is not the name of a file"),
    f"[a]\nurl = 'https://example.org/'\nsha256 = '{DIGEST}'": ("a.file", "'' is not the name"),
    f"[a]\n{URL}title = []": ("a.title", "[] is not a text"),
    f"[a]\nparts = []\nsha256 = '{DIGEST}'": ("a.parts", "it is not a list of"),
    f"[a]\nparts = [{{wheel = 'w==1'}}]\nsha256 = '{DIGEST}'": ("a.parts[0]", "it must have wheel"),
    f"[a]\nparts = [{{wheel = 'w', member = 'm'}}]\nsha256 = '{DIGEST}'": (
        "a.parts[0].wheel", "'w' is not of the form name==version",
    ),
    f"[a]\nparts = [{{wheel = '--x==1', member = 'm'}}]\nsha256 = '{DIGEST}'": (
        "a.parts[0].wheel", "'--x==1' is not of the form",
    ),
    f"[a]\nparts = [{{wheel = 'w==1', member = '../m'}}]\nsha256 = '{DIGEST}'": (
        "a.parts[0].member", "'../m' is not a path inside a wheel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path, text):
    place, why = WRONG[text]
    with pytest.raises(InvalidOption) as raised:
        read(tmp_path, text)
    assert raised.value.what.endswith(f"catalogue.toml: {place}" if why else place)
    assert str(tmp_path / "catalogue.toml") in raised.value.what
    assert why in raised.value.why
