from pathlib import Path

import pytest

from tokenmill.core.errors import InvalidOption
from tokenmill.core.options import Scope, read_config_file, resolve
from tokenmill.core.provider import Provider, parse_provider

_SO = Path("/lib/a.so")


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("cpu", Provider("cpu")),
        ("cuda|device_id=0", Provider("cuda", {"device_id": "0"})),
        (
            "cuda|device_id=0|opt.arena_extend_strategy=kSameAsRequested",
            Provider("cuda", {"device_id": "0", "arena_extend_strategy": "kSameAsRequested"}),
        ),
        (" cuda | device_id=0", Provider("cuda", {"device_id": "0"})),
        ("cuda|config=a=b", Provider("cuda", {"config": "a=b"})),
        ("cuda|config=", Provider("cuda", {"config": ""})),
        (r"cuda|config=a\|b", Provider("cuda", {"config": "a|b"})),
        (r"cuda|a=b\\|c=d", Provider("cuda", {"a": "b\\", "c": "d"})),
        (r"cuda|a=b\c", Provider("cuda", {"a": r"b\c"})),
        ("plugin:/lib/a.so", Provider("", {}, _SO)),
        ("plugin:/lib/a.so|device=GPU", Provider("", {}, _SO, "GPU")),
        ("plugin:/lib/a.so|ep=X.Y|device=1", Provider("X.Y", {}, _SO, "1")),
        ("plugin:/lib/a.so|opt.device=2", Provider("", {"device": "2"}, _SO)),
        (
            'plugin:/lib/a.so|device=CPU|opt.load_config={"CPU": {"A": "b", "C": 1}}',
            Provider("", {"load_config": '{"CPU": {"A": "b", "C": 1}}'}, _SO, "CPU"),
        ),
        (r"plugin:/lib/a\|b.so", Provider("", {}, Path("/lib/a|b.so"))),
    ],
)
def test_what_a_text_means(text, provider):
    assert parse_provider(text) == provider


def test_a_relative_path_is_one_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_provider("plugin:lib/a.so").library == tmp_path / "lib/a.so"
    assert parse_provider("plugin:~/a.so").library == Path("/home/someone/a.so")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "part 1, the name, is empty"),
        ("|device_id=0", "part 1, the name, is empty"),
        ("cuda|", "part 2, '', is not option=value"),
        ("cuda|device_id=0|fast", "part 3, 'fast', is not option=value"),
        ("cuda|=1", "part 2, '=1', is not option=value"),
        ("cuda|a=1|a=1", "part 3 gives 'a' a second time"),
        ("cuda|a=1|opt.a=1", "given twice, with and without 'opt.'"),
        ("cuda|opt.=1", "an option has no name"),
        ("cuda|device=0", "device= is for plug-ins"),
        ("plugin:", "part 1 has no path behind 'plugin:'"),
        ("plugin:|device=CPU", "part 1 has no path behind 'plugin:'"),
        ("plugin:/a.so|device=", "device= has no value"),
        ("plugin:/a.so|ep= ", "ep= has no value"),
        ("plugin:/a.so|threads=1", "a plug-in has device=, ep= and opt.NAME=, and no 'threads'"),
        ("plugin:/a.so|opt.=1", "and no 'opt.'"),
    ],
)
def test_malformed_text_is_refused_by_the_part(text, why):
    with pytest.raises(InvalidOption) as caught:
        parse_provider(text)
    assert why in caught.value.why
    assert repr(text) in caught.value.what
    assert "plugin:PATH|device=CPU" in caught.value.fix


def test_every_door_refuses_it_by_its_own_name(tmp_path):
    def what(**source):
        with pytest.raises(InvalidOption) as caught:
            resolve(Scope.MODEL, source.pop("given", {}), **{"environ": {}, **source})
        return caught.value.what

    file = tmp_path / "config.toml"
    file.write_text('[model]\nep = ["cpu", "cuda|x"]\n')
    section = read_config_file({"TOKENMILL_CONFIG": str(file)})
    assert what(given={"ep": ["cuda|x"]}) == "ep has 'cuda|x'"
    assert what(environ={"TOKENMILL_EP": "cpu, cuda|x"}) == "TOKENMILL_EP has 'cuda|x'"
    assert what(file=section) == "model.ep in the configuration file has 'cuda|x'"


def test_a_comma_within_a_value_is_escaped_in_the_environment_only():
    text = r'plugin:/a.so|opt.c={"A": 1\, "B": 2}, cuda'
    values = resolve(Scope.MODEL, {}, environ={"TOKENMILL_EP": text})
    assert values["ep"] == ('plugin:/a.so|opt.c={"A": 1, "B": 2}', "cuda")
    given = {"ep": 'plugin:/a.so|opt.c={"A": 1, "B": 2}'}
    assert resolve(Scope.MODEL, given, environ={})["ep"] == (given["ep"],)
