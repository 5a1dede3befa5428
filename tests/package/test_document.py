import json

import pytest

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.document import read_document, read_head


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "file.json"
        file.write_text(text if isinstance(text, str) else json.dumps(text))
        return file

    return write


def test_fields_have_types_and_absent_ones_are_none(write):
    section = read_document(write({"a": "x", "b": 3, "c": 0.5, "d": True, "e": [1, 2], "f": None}))
    assert section.text("a") == "x"
    assert section.integer("b") == 3
    assert (section.number("b", 0, 9), section.number("c", 0, 9)) == (3.0, 0.5)
    assert section.boolean("d") is True
    assert (section.integers("e"), section.integers("b"), section.integers("g")) == (
        (1, 2),
        (3,),
        (),
    )
    assert [section.text("f"), section.integer("g"), section.boolean("g")] == [None] * 3
    assert (section.has_null("f"), section.has_null("g"), "f" in section) == (True, False, False)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda s: s.text("n"), "a.n: 7 is not a string"),
        (lambda s: s.boolean("n"), "a.n: 7 is not true or false"),
        (lambda s: s.integer("t"), "a.t: true is not a whole number"),
        (lambda s: s.integer("f"), "a.f: 0.5 is not a whole number"),
        (lambda s: s.integer("n", high=6), "a.n: 7 is not from 0 to 6"),
        (lambda s: s.number("t", 0, 9), "a.t: true is not a number"),
        (lambda s: s.number("n", 0, 6), "a.n: 7 is not from 0 to 6"),
        (lambda s: s.number("nan", 0, 6), "a.nan: NaN is not from 0 to 6"),
        (lambda s: s.integers("t"), "a.t: true is not a whole number"),
        (lambda s: s.section("n"), "a.n: 7 is not an object"),
        (lambda s: s.strings("s"), r"a.s.x: \[\] is not a string"),
    ],
)
def test_another_type_names_file_and_field(write, read, message):
    values = {"n": 7, "t": True, "f": 0.5, "nan": float("nan"), "s": {"x": []}}
    section = read_document(write({"a": values})).section("a")
    with pytest.raises(InvalidPackage, match=rf"file\.json: {message}"):
        read(section)


def test_what_nobody_asked_for_is_listed_with_its_full_name(write):
    document = read_document(write({"a": {"x": 1, "y": {"z": "long" * 40}}, "b": 2, "c": None}))
    document.section("a").integer("x")
    found = dict(document.unused())
    assert list(found) == ["a.y", "b"]
    assert len(found["a.y"]) == 80


def test_a_byte_order_mark_is_no_part_of_the_text(write):
    assert read_document(write("\ufeff{}")).path == ""


def test_the_head_of_a_large_object_is_read_without_the_rest(write):
    file = write('{"skip": {"wanted": 1}, "wanted": {"x": 2}, "model": {broken')
    assert read_head(file, frozenset({"wanted"})).section("wanted").integer("x") == 2


def test_a_key_inside_a_string_is_no_key(write):
    file = write({"text": '"wanted": 1, ', "other": {}})
    assert "wanted" not in read_head(file, frozenset({"wanted"}))


@pytest.mark.parametrize("text", ["{}", " { } ", '{"a":"x"}', '{\n"a" : [1 , 2] ,\n"b":{}\n}'])
def test_an_object_without_the_field_is_read_to_its_end(write, text):
    assert list(read_head(write(text), frozenset({"wanted"})).texts()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a"', '{"a":', '{"a": 1', '{"a": 1 "b": 2}', "{1: 2}", '{"a": nope}']
)
def test_a_head_that_is_no_json(write, text):
    with pytest.raises(InvalidPackage, match=r"file\.json is not valid JSON"):
        read_head(write(text), frozenset({"wanted"}))
