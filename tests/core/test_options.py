from pathlib import Path

import pytest

from tokenmill.api import CALLABLES, ModelOptions, RequestOptions
from tokenmill.core.errors import InvalidOption
from tokenmill.core.options import OPTIONS, Scope, options_of, read_config_file, resolve


def test_names_and_flags_are_unique():
    names = [row.name for row in OPTIONS]
    flags = [row.flag for row in OPTIONS if row.flag]
    assert len(set(names)) == len(names)
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize(
    ("scope", "typed"), [(Scope.MODEL, ModelOptions), (Scope.REQUEST, RequestOptions)]
)
def test_the_library_takes_exactly_the_options_of_the_table(scope, typed):
    assert {*typed.__annotations__} - {*CALLABLES} == {row.name for row in options_of(scope)}


def test_given_wins_over_environment_over_file_over_default():
    environ, file = {"TOKENMILL_THREADS": "3"}, {"threads": 2, "max_rows": 5}
    values = resolve(Scope.MODEL, {"threads": 4}, environ=environ, file=file)
    assert (values["threads"], values["max_rows"], values["backend"]) == (4, 5, "auto")
    assert resolve(Scope.MODEL, {}, environ=environ, file=file)["threads"] == 3
    assert resolve(Scope.MODEL, {}, environ={}, file=file)["threads"] == 2


def test_requests_take_nothing_from_the_environment():
    values = resolve(Scope.REQUEST, {}, environ={"TOKENMILL_TEMPERATURE": "0.1"})
    assert values["temperature"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"thread": 1}, "no option 'thread'"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": "two"}, "threads is 'two'"),
        ({"threads": True}, "threads is True"),
        ({"backend": "gpu"}, "auto, ort, reference"),
        ({"ep": 3}, "ep is 3"),
        ({"offline": "yes"}, "offline is 'yes'"),
    ],
)
def test_wrong_values_are_refused_by_name(given, message):
    with pytest.raises(InvalidOption, match=message):
        resolve(Scope.MODEL, given, environ={})


def test_a_wrong_environment_variable_is_named():
    with pytest.raises(InvalidOption, match="TOKENMILL_THREADS is 'many'"):
        resolve(Scope.MODEL, {}, environ={"TOKENMILL_THREADS": "many"})


def test_texts_from_the_environment_are_split_at_commas():
    environ = {"TOKENMILL_EP": "cuda|device_id=1, cpu", "TOKENMILL_OFFLINE": "yes"}
    values = resolve(Scope.MODEL, {}, environ=environ)
    assert (values["ep"], values["offline"]) == (("cuda|device_id=1", "cpu"), True)


@pytest.mark.parametrize("given", ["4GB", 4_000_000_000, "4000000000"])
def test_a_size_is_read_from_text_or_a_number(given):
    assert resolve(Scope.MODEL, {"memory_budget": given}, environ={})["memory_budget"] == 4 * 10**9
    environ = {"TOKENMILL_MEMORY_BUDGET": str(given)}
    assert resolve(Scope.MODEL, {}, environ=environ)["memory_budget"] == 4 * 10**9
    file = {"memory_budget": given}
    assert resolve(Scope.MODEL, {}, environ={}, file=file)["memory_budget"] == 4 * 10**9


@pytest.mark.parametrize("given", ["much", 0, -1, True, 1.5])
def test_a_wrong_size_is_refused_with_its_source(given):
    with pytest.raises(InvalidOption) as caught:
        resolve(Scope.MODEL, {}, environ={}, file={"memory_budget": given})
    assert caught.value.what.startswith("model.memory_budget in the configuration file is ")
    assert caught.value.why


def test_paths_are_expanded():
    assert resolve(Scope.MODEL, {"cache_dir": "~/x"}, environ={})["cache_dir"] == Path.home() / "x"


def test_the_configuration_file_is_read_and_its_unknown_keys_are_refused(tmp_path):
    file = tmp_path / "tokenmill.toml"
    environ = {"TOKENMILL_CONFIG": str(file)}
    with pytest.raises(InvalidOption, match="no such file"):
        read_config_file(environ)
    file.write_text("[model]\nthreads = 2\n")
    assert read_config_file(environ) == {"threads": 2}
    file.write_text("[model]\nthread = 2\n")
    with pytest.raises(InvalidOption, match=r"model\.thread"):
        read_config_file(environ)
    file.write_text("[model\n")
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_config_file(environ)
