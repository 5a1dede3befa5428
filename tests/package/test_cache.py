import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.package.cache import Cache


def test_the_root_is_the_callers_or_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.at(Path("/somewhere")).root == Path("/somewhere")
    assert Cache.at(None).root == tmp_path / "tokenmill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert Cache.at(None).root == Path("/home/me/.cache/tokenmill")


def test_an_empty_cache_lists_nothing(tmp_path):
    assert Cache(tmp_path / "none").list() == []


def test_things_are_listed_by_kind_with_their_sizes(tmp_path):
    cache = Cache(tmp_path)
    for path, size in (
        ("downloads/smollm2/x.gguf", 5),
        ("imports/x-keep-1/model.onnx", 7),
        ("imports/.x.partial/model.onnx", 100),
        ("hub/models--org--name/blobs/1", 11),
        ("hub/.locks/1", 100),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(bytes(size))
    snapshot = tmp_path / "hub/models--org--name/snapshots/c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "model.onnx").symlink_to("../../blobs/1")
    assert [(entry.kind, entry.name, entry.size) for entry in cache.list()] == [
        ("download", "smollm2", 5),
        ("import", "x-keep-1", 7),
        ("hub", "org/name", 11),
    ]


def test_a_new_directory_appears_whole(tmp_path):
    target = tmp_path / "parent" / "name"
    with Cache(tmp_path).new_directory(target) as part:
        (part / "file").write_text("x")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in target.parent.iterdir()] == ["name"]


def write_half(directory):
    (directory / "file").write_text("x")
    raise OSError("the disk is full")


def test_a_new_directory_that_fails_leaves_nothing(tmp_path):
    target = tmp_path / "parent" / "name"
    with pytest.raises(OSError, match="disk"), Cache(tmp_path).new_directory(target) as part:
        write_half(part)
    assert list(target.parent.iterdir()) == []


def is_held(cache, name):
    with (cache.root / "locks" / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_lock_keeps_others_out_of_that_name_only(tmp_path):
    cache = Cache(tmp_path)
    with cache.lock("another"):
        pass
    with cache.lock("thing"):
        assert is_held(cache, "thing")
        assert not is_held(cache, "another")
    assert not is_held(cache, "thing")


def test_a_lock_ends_with_the_process_that_held_it(tmp_path):
    script = """
import os, sys
from pathlib import Path
from tokenmill.package.cache import Cache
with Cache(Path(sys.argv[1])).lock("thing"):
    os._exit(7)
"""
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert result.returncode == 7
    with Cache(tmp_path).lock("thing"):
        pass
