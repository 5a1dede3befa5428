import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokenmill.core.errors import Busy
from tokenmill.package import cache as cache_module
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


def test_what_was_interrupted_is_listed_by_its_name(tmp_path):
    cache = Cache(tmp_path)
    for name in ("tiny", "models--org--na--me"):
        cache.partial(name).mkdir(parents=True)
        (cache.partial(name) / "half").write_bytes(bytes(3))
    assert [(entry.kind, entry.name, entry.size) for entry in cache.list()] == [
        ("partial", "org/na--me", 3),
        ("partial", "tiny", 3),
    ]


def test_a_download_that_ends_while_it_is_listed_is_left_out(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    for name in ("goes", "stays"):
        cache.partial(name).mkdir(parents=True)
    directories = cache_module._directories

    def ending(parent, **options):
        for path in directories(parent, **options):
            if path.name == "goes":
                path.rmdir()
            yield path

    monkeypatch.setattr(cache_module, "_directories", ending)
    assert [entry.name for entry in cache.list()] == ["stays"]


def test_files_that_go_while_they_are_counted_count_nothing(tmp_path, monkeypatch):
    walked = [(str(tmp_path), [], ["gone", "there"])]
    (tmp_path / "there").write_bytes(bytes(3))
    monkeypatch.setattr(cache_module.os, "walk", lambda directory: walked)
    assert cache_module.size_of(tmp_path) == 3


def test_using_a_thing_tells_when(tmp_path):
    cache = Cache(tmp_path)
    snapshot = cache.hub / "models--org--name" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    os.utime(cache.hub / "models--org--name", (1, 1))
    assert cache.list()[0].last_used == 1
    cache.touch(snapshot)
    assert cache.list()[0].last_used > 1e9
    for path in (tmp_path, cache.hub, tmp_path / "elsewhere"):
        cache.touch(path)


def left_behind(cache):
    """Makes what killed processes leave, and what is not theirs; returns the latter's names."""
    for name in ("tiny", "model", "models--org--name"):
        with cache.lock(name):
            pass
    for path in (
        "downloads/.tiny.abcd_123",
        "imports/.model.abcd1234.partial",
        "imports/.model.abcd1234.old",
        "hub/.models--org--name.abcd1234",
        "downloads/.config.abcd1234",
        "downloads/.tiny.d",
        "downloads/.tiny",
        "imports/model",
    ):
        (cache.root / path).mkdir(parents=True)
    return {"downloads/.config.abcd1234", "downloads/.tiny.d", "downloads/.tiny", "imports/model"}


def directories(cache):
    found = (path.relative_to(cache.root).as_posix() for path in cache.root.glob("*/*"))
    return {name for name in found if not name.startswith("locks/")}


def test_cleaning_removes_what_killed_processes_left_and_nothing_else(tmp_path):
    cache = Cache(tmp_path)
    kept = left_behind(cache)
    cache.clean()
    assert directories(cache) == kept


def test_cleaning_leaves_what_another_process_works_on(tmp_path):
    cache = Cache(tmp_path)
    kept = left_behind(cache)
    with cache.lock("model"):
        cache.clean()
    assert directories(cache) == kept | {
        "imports/.model.abcd1234.partial",
        "imports/.model.abcd1234.old",
    }


def test_cleaning_keeps_interrupted_downloads_for_two_weeks(tmp_path):
    cache = Cache(tmp_path)
    for name, days in (("old", 15), ("new", 13), ("locked", 15)):
        with cache.lock(name):
            cache.partial(name).mkdir(parents=True)
        then = time.time() - days * 86400
        os.utime(cache.partial(name), (then, then))
    with cache.lock("locked"):
        cache.clean()
    assert sorted(path.name for path in cache.partials.iterdir()) == ["locked", "new"]


def test_a_lock_can_be_tried(tmp_path):
    cache = Cache(tmp_path)
    with cache.lock("thing"), pytest.raises(Busy, match="thing is in use"), cache.try_lock("thing"):
        pass
    with cache.try_lock("thing"):
        assert is_held(cache, "thing")
