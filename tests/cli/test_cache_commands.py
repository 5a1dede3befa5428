"""`list` and `rm` from outside."""

import json
import os
import subprocess
import sys

import pytest

from tokenmill.package.cache import Cache


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    for path in ("downloads/tiny", "imports/tiny-keep-1", "partials/half", "graphs"):
        (cache.root / path).mkdir(parents=True)
        (cache.root / path / "file").write_bytes(bytes(1_500_000))
    os.utime(cache.downloads / "tiny", (86400, 86400))
    return cache


def tokenmill(cache, *arguments):
    environment = os.environ | {
        "TOKENMILL_CACHE_DIR": str(cache.root),
        "XDG_CONFIG_HOME": str(cache.root.parent / "config"),
    }
    return subprocess.run(
        [sys.executable, "-c", "from tokenmill.cli.main import main; main()", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip


def test_list_shows_kind_size_day_and_name(cache):
    lines = tokenmill(cache, "list").stdout.splitlines()
    assert lines[0] == "download         1.5 MB  1970-01-02  tiny"
    assert [line.split()[0] for line in lines] == [
        "download", "import", "partial", "catalogue", "catalogue",
    ]  # fmt: skip
    assert "smollm2: SmolLM2 135M Instruct" in lines[-1]


def test_list_as_json(cache):
    told = json.loads(tokenmill(cache, "list", "--json").stdout)
    assert (told["format"], told["root"]) == (1, str(cache.root))
    assert told["cache"][0] == {
        "kind": "download",
        "name": "tiny",
        "bytes": 1_500_000,
        "last_used": "1970-01-02T00:00:00+00:00",
        "path": str(cache.downloads / "tiny"),
    }
    assert told["catalogue"][1]["bytes"] == 98362432


def test_list_of_an_empty_cache(tmp_path):
    result = tokenmill(Cache(tmp_path / "none"), "list")
    assert result.returncode == 0
    assert "is empty" in result.stderr


def test_rm_removes_and_says_so(cache):
    result = tokenmill(cache, "rm", "tiny", "half")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "removed download tiny, 1.5 MB",
        "removed partial half, 1.5 MB",
        "3.0 MB freed",
    ]
    assert [entry.name for entry in cache.list()] == ["tiny-keep-1"]


def test_rm_all(cache):
    result = tokenmill(cache, "rm", "--all")
    assert result.returncode == 0
    assert result.stderr.endswith("removed graphs graphs, 1.5 MB\n6.0 MB freed\n")
    assert cache.list() == []


def test_rm_of_an_unknown_name(cache):
    result = tokenmill(cache, "rm", "tinny")
    assert result.returncode == 2
    assert "the cache has no 'tinny'" in result.stderr
    assert "fix: Did you mean 'tiny'?" in result.stderr


def test_rm_of_what_another_process_works_on(cache):
    with cache.lock("tiny"):
        result = tokenmill(cache, "rm", "tiny")
    assert result.returncode == 3
    assert "error: tiny is in use" in result.stderr


def test_a_users_catalogue_that_is_wrong(cache):
    file = cache.root.parent / "config" / "tokenmill" / "catalogue.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[mine]\nhub = "org/name"\ncolor = 1\n')
    result = tokenmill(cache, "list")
    assert result.returncode == 2
    assert f"error: {file}: mine.color" in result.stderr
