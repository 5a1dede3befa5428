import json

import pytest

from support.tiny_genai import tokenizer_json
from tokenmill.core.errors import InvalidPackage
from tokenmill.package.text_files import DeclaredIds, read_text_files

IDS = DeclaredIds(bos=1, eos=((2, "declared"),), pad=0, vocab_size=100, evidence_bos="declared bos")


@pytest.fixture
def read(tmp_path):
    """Writes documents by stem and templates by file name, and reads the directory."""

    def read(templates=None, *, ids=IDS, tokenizer=None, **documents):
        documents["tokenizer"] = tokenizer or tokenizer_json()
        for stem, document in documents.items():
            (tmp_path / f"{stem}.json").write_text(json.dumps(document))
        for name, text in (templates or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return read_text_files(tmp_path, ids)

    return read


def test_the_end_set_is_the_union_of_what_all_files_say(read):
    found = read(
        generation_config={"eos_token_id": [2, 7]}, tokenizer_config={"eos_token": "<|end|>"}
    )
    assert found.text.eos_token_ids == {2, 7, 3}


def test_an_end_token_outside_the_vocabulary_is_left_out_with_the_reason(read):
    found = read(generation_config={"eos_token_id": [100, -1]})
    assert found.text.eos_token_ids == {2}
    why = "the vocabulary has the ids 0 to 99"
    assert [(item.value, item.why) for item in found.ignored] == [("100", why), ("-1", why)]


def test_an_end_token_that_the_tokenizer_lacks_is_left_out(read):
    found = read(tokenizer_config={"eos_token": "<none>"})
    assert [(item.field, item.value) for item in found.ignored] == [
        ("tokenizer_config.json eos_token", "<none>")
    ]


def test_without_any_word_of_bos_none_is_added(read):
    text = read().text
    assert (text.bos_token_id, text.add_bos) == (1, False)


def test_a_post_processor_that_writes_bos_adds_it(read):
    text = read(tokenizer=tokenizer_json(prefix="<s>")).text
    assert (text.bos_token_id, text.add_bos) == (1, True)


def test_a_post_processor_inside_a_sequence_counts(read):
    tokenizer = tokenizer_json(prefix="<s>")
    step = tokenizer["post_processor"]
    tokenizer["post_processor"] = {
        "type": "Sequence",
        "processors": [{"type": "ByteLevel", "trim_offsets": False}, step],
    }
    assert read(tokenizer=tokenizer).text.add_bos is True


def test_a_post_processor_that_writes_after_the_text_adds_no_bos(read):
    tokenizer = tokenizer_json(prefix="</s>")
    tokenizer["post_processor"]["single"].reverse()
    assert read(tokenizer=tokenizer).text.add_bos is False


@pytest.mark.parametrize("wanted", [True, False])
def test_what_the_configuration_says_of_bos_wins(read, wanted):
    prefix = None if wanted else "<s>"
    found = read(
        tokenizer=tokenizer_json(prefix=prefix), tokenizer_config={"add_bos_token": wanted}
    )
    assert (found.text.bos_token_id, found.text.add_bos) == (1, wanted)
    assert [item.field for item in found.ignored] == (
        [] if wanted else ["tokenizer.json post_processor"]
    )


def test_the_token_that_the_tokenizer_writes_is_the_bos(read):
    found = read(tokenizer=tokenizer_json(prefix="<|end|>"))
    assert (found.text.bos_token_id, found.text.add_bos) == (3, True)
    assert [(item.field, item.value) for item in found.ignored] == [("declared bos", "1")]


def test_a_bos_to_add_that_nobody_defines_is_refused(read):
    ids = DeclaredIds(bos=None, eos=(), pad=None, vocab_size=100)
    with pytest.raises(InvalidPackage, match=r"tokenizer_config\.json: add_bos_token"):
        read(ids=ids, tokenizer_config={"add_bos_token": True})


def test_the_bos_is_found_by_its_text(read):
    ids = DeclaredIds(bos=None, eos=(), pad=None, vocab_size=100)
    config = {"add_bos_token": True, "bos_token": {"content": "<s>", "lstrip": False}}
    text = read(ids=ids, tokenizer_config=config).text
    assert (text.bos_token_id, text.add_bos) == (1, True)


def test_special_tokens_are_texts_and_the_configuration_wins(read):
    text = read(
        special_tokens_map={"bos_token": "<s>", "unk_token": {"content": "<pad>"}},
        tokenizer_config={"bos_token": "<|end|>", "pad_token": None},
    ).text
    assert text.special_tokens == {
        "bos_token": "<|end|>",
        "unk_token": "<pad>",
        "eos_token": "</s>",
    }


def test_a_token_that_is_set_to_null_is_not_filled_in(read):
    assert "bos_token" not in read(tokenizer_config={"bos_token": None}).text.special_tokens


def template_of(found):
    return found.text.chat_template, found.text.template_source


def test_a_template_in_a_file_of_its_own_comes_first(read):
    found = read({"chat_template.jinja": "file"}, tokenizer_config={"chat_template": "field"})
    assert template_of(found) == ("file", "chat_template.jinja")


def test_a_template_in_the_configuration(read):
    found = read(tokenizer_config={"chat_template": "field"})
    assert template_of(found) == ("field", "tokenizer_config.json chat_template")


def test_named_templates_keep_their_names(read):
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    found = read(
        {"additional_chat_templates/rag.jinja": "r"}, tokenizer_config={"chat_template": named}
    )
    assert template_of(found) == ("d", "tokenizer_config.json chat_template, 'default'")
    assert found.text.named_templates == {"tool_use": "t", "rag": "r"}


def test_several_templates_without_a_default_give_none(read):
    named = [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]
    found = read(tokenizer_config={"chat_template": named})
    assert template_of(found) == (None, "")
    assert found.text.named_templates == {"a": "x", "b": "y"}


def test_no_template(read):
    assert template_of(read()) == (None, "")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"tokenizer_config": {"chat_template": 3}}, "chat_template: it is neither"),
        ({"tokenizer_config": {"chat_template": [3]}}, r"chat_template\[0\]"),
        ({"tokenizer_config": {"bos_token": 3}}, "bos_token: it is neither"),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "add_bos_token: .* not true or false"),
        ({"generation_config": {"eos_token_id": "2"}}, "eos_token_id: .* not a whole number"),
        ({"tokenizer": {"added_tokens": {"a": 1}}}, "added_tokens: it is not a list"),
        ({"tokenizer": {"added_tokens": [{"id": "1"}]}}, r"added_tokens\[0\]"),
        ({"special_tokens_map": {"eos_token": []}}, "eos_token: it is neither"),
    ],
)
def test_a_malformed_file_is_refused_with_the_field(read, document, message):
    with pytest.raises(InvalidPackage, match=message):
        read(**document)


@pytest.mark.parametrize(
    "processor",
    [
        "text",
        [],
        {"type": "TemplateProcessing"},
        {"type": "TemplateProcessing", "single": []},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": 3}]},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<none>"}}]},
        {"type": "RobertaProcessing", "cls": ["<s>"]},
        {"type": "Sequence", "processors": [None]},
        {"type": "Sequence", "processors": 7},
    ],
)
def test_a_post_processor_of_an_unknown_shape_adds_nothing(read, processor):
    tokenizer = tokenizer_json() | {"post_processor": processor}
    assert read(tokenizer=tokenizer).text.add_bos is False
