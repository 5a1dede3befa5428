"""A chat template given by the caller, for packages of every form."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from support.tiny_genai import write_genai
from support.tiny_package import NO_TEXT
from tokenmill.core.errors import InvalidOption, InvalidPackage
from tokenmill.package.chosen_template import with_template
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMED = replace(
    NO_TEXT,
    chat_template="own",
    named_templates={"tool_use": "tools", "rag": "documents"},
    template_source="chat_template.jinja",
)


def test_a_file_takes_the_place_of_the_packages_template(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}", encoding="utf-8")
    text = with_template(NAMED, str(file))
    assert text.chat_template == "{{ messages[0].content }}"
    assert text.template_source == f"{file}, by chat_template"
    assert text.named_templates == NAMED.named_templates


def test_a_name_takes_that_template_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rag").write_text("a file of that name")
    text = with_template(NAMED, "rag")
    assert text.chat_template == "documents"
    assert text.template_source == "the package's template 'rag', by chat_template"


@pytest.mark.parametrize("wanted", ["none.jinja", "", "{{ " + "x" * 5000 + " }}", "a\0b"])
def test_what_is_neither_is_refused_with_the_names_that_there_are(wanted):
    with pytest.raises(InvalidOption, match="no such file, and the package has rag, tool_use"):
        with_template(NAMED, wanted)
    with pytest.raises(InvalidOption, match="the package has no templates with names"):
        with_template(NO_TEXT, wanted)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPackage, match="bad is not UTF-8"):
        with_template(NO_TEXT, str(tmp_path / "bad"))


@pytest.mark.parametrize(
    "form",
    [
        "llama/genai-fp32",
        "llama/mobius-standard",
        "llama/optimum",
        "qwen2/bare",
        "qwen2/model-package",
    ],
)
def test_every_form_of_package_takes_one(form, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("mine")
    package = load_package(FIXTURES / form, LoadOptions(chat_template=str(file)))
    own = load_package(FIXTURES / form)
    assert package.text.chat_template == "mine"
    assert replace(package, text=own.text) == own


def test_a_package_without_a_template_chats_with_the_given_one(tmp_path):
    config = {"add_bos_token": False}
    root = write_genai(tmp_path / "model", tokenizer_config=config)
    assert load_package(root).text.chat_template is None
    (tmp_path / "mine.jinja").write_text(json.dumps("hi"))
    options = LoadOptions(chat_template=str(tmp_path / "mine.jinja"))
    assert load_package(root, options).text.chat_template == '"hi"'
