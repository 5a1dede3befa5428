import contextlib
import json
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.core.errors import InvalidPackage, TokenmillError
from tokenmill.package.metadata import read_document
from tokenmill.package.metadata.read_document import read_metadata_file
from tokenmill.package.metadata.yaml_values import YamlProblem, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, b: [x, 'y', \"z\"]}", {"a": 1, "b": ["x", "y", "z"]}),
        ("a: no\nb: on\nc: y", {"a": "no", "b": "on", "c": "y"}),
        ("a: true\nb: False\nc: 'true'", {"a": True, "b": False, "c": "true"}),
        ("a: 1e-5\nb: -2.5\nc: .5\nd: 7.", {"a": 1e-5, "b": -2.5, "c": 0.5, "d": 7.0}),
        ("a: 0x10\nb: 0o17\nc: 017\nd: +3", {"a": 16, "b": 15, "c": 17, "d": 3}),
        ("a: 2024-01-01\nb: 1:30", {"a": "2024-01-01", "b": "1:30"}),
        ("a:\nb: ~\nc: null\nd: ''", {"a": None, "b": None, "c": None, "d": ""}),
        ("1: one\ntrue: yes", {"1": "one", "true": "yes"}),
        ("a: &x {k: 1}\nb: *x\nc: [*x]", {"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]}),
        ("a: &x 1\nb: &x 2\nc: *x", {"a": 1, "b": 2, "c": 2}),
        ("", None),
        ("--- a", "a"),
    ],
)
def test_plain_values_are_read(text, value):
    assert read_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ("a:\n  b: 1\n  b: 2", "a.b", "line 3: the field is there twice"),
        ("a: [1, {b: !!python/object:os.system x}]", "a[1].b", "line 1: the tag"),
        ("a: !!int 3", "a", "the tag 'tag:yaml.org,2002:int' is not allowed"),
        ("a: &x [*x]", "a[0]", "the alias 'x' stands for nothing that is complete"),
        ("a: *nowhere", "a", "the alias 'nowhere'"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "c", "line 3: merge keys"),
        ("a: .inf", "a", r"\.inf is not a finite number"),
        ("a: 1e999", "a", "1e999 is not a finite number"),
        ("a: .NaN", "a", "not a finite number"),
        ("? [1]\n: 2", "", "a field's name is not a plain text"),
        ("a: 1\n---\nb: 2", "", "line 2: a second document begins"),
        ("a: [1", "", r"line \d, column 1: "),
        ("a: 1\n\tb: 2", "", "line"),
        ("a: \x01", "", "control characters are not allowed|not allowed"),
        ("[" * 65, "", "nested more than 64 deep"),
    ],
)
def test_what_is_no_plain_value_is_refused_by_the_place(text, path, why):
    with pytest.raises(YamlProblem, match=why) as caught:
        read_yaml(text)
    assert path == "" or caught.value.path == path


def test_64_levels_are_read():
    assert json.dumps(read_yaml("[" * 64 + "]" * 64)) == "[" * 64 + "]" * 64


def test_a_bomb_of_aliases_is_refused_at_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    start = time.perf_counter()
    with pytest.raises(YamlProblem, match="more than 500000 values") as caught:
        read_yaml("\n".join(lines))
    assert caught.value.path.startswith("a5")
    assert time.perf_counter() - start < 1


def test_depth_grows_through_aliases_too():
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100))]
    with pytest.raises(YamlProblem, match="nested more than 64 deep") as caught:
        read_yaml("\n".join(lines))
    assert caught.value.path == "a63[0]"


def read(directory, text, name="inference_metadata.yaml"):
    file = directory / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_metadata_file(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.yaml", "- a", "m.yaml: it holds a list, not an object"),
        ("m.yaml", "", "m.yaml: it holds nothing, not an object"),
        ("m.yaml", "a: [", "m.yaml is not valid: line 2, column"),
        ("m.yaml", b"a: \xff", "m.yaml is not UTF-8"),
        ("m.json", "{", "m.json is not valid JSON"),
        ("m.json", '{"a": 1, "a": 2}', "m.json: a: the field is there twice"),
        ("m.json", '{"a": NaN}', "NaN is not a finite number"),
        ("m.json", '{"a": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64 deep"),
        ("m.json", "[" * 100_000, "m.json is not valid JSON"),
        ("m.json", '{"a": ' + "9" * 5000 + "}", "m.json is not valid JSON"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, name, text, message):
    with pytest.raises(InvalidPackage, match=message):
        read(tmp_path, text, name)


def test_a_file_of_gigabytes_is_not_read(tmp_path):
    file = tmp_path / "inference_metadata.yaml"
    with file.open("wb") as out:
        out.truncate(3 << 30)
    with pytest.raises(InvalidPackage, match="has 3221225472 bytes: at most 4194304 are read"):
        read_metadata_file(file)


def test_two_documents_are_refused(tmp_path):
    for name in ("inference_metadata.yaml", "inference_metadata.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InvalidPackage, match=r"metadata\.yaml and inference_metadata\.json: two"):
        read_document.find_document(tmp_path)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc<~:0 ", max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=300, deadline=None)
def test_what_is_written_as_json_is_read_back_by_both_readers(value):
    assert read_yaml(json.dumps(value, ensure_ascii=False)) == value


WORDS = "a b : ? - [ ] { } , & * &x *x ! !!int | > ' \" # % @ ` ~ null 1 .5 1e9 .inf << --- ..."
PIECES = st.lists(
    st.sampled_from([*WORDS.split(), " ", "\n", "\n  ", "\t", "\\", "\x00", "\u2028", "\ufeff"]),
    max_size=40,
).map("".join)


@given(PIECES | st.text(max_size=60) | st.binary(max_size=60))
@settings(
    max_examples=1500,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_only_typed_errors_escape_whatever_the_file_holds(tmp_path, content):
    for name in ("fuzz.yaml", "fuzz.json"):
        file = tmp_path / name
        file.write_bytes(
            content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        )
        with contextlib.suppress(TokenmillError):
            read_metadata_file(file)


@pytest.mark.parametrize(
    "text", ["[" * 4_000_000, "{" * 4_000_000, "- " * 2_000_000, "&a " * 10**6]
)
def test_long_runs_of_marks_end_soon(text):
    start = time.perf_counter()
    with pytest.raises(YamlProblem):
        read_yaml(text)
    assert time.perf_counter() - start < 5


def test_the_writers_of_the_field_use_anchors_and_they_are_resolved(tmp_path):
    shared = [1, 2]
    text = yaml.safe_dump({"a": shared, "b": shared})
    assert "&id001" in text
    assert read(tmp_path, text).raw("b") == [1, 2]
