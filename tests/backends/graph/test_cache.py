"""What killed writers leave in the cache of graphs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokenmill.backends.graph.cache import GraphCache


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=60)
    return process.pid


def left(directory: Path, process: object, age: float = 0) -> Path:
    file = directory / f".writing-{process}-k3x_q"
    file.write_bytes(b"half of one")
    written = time.time() - age
    os.utime(file, (written, written))
    return file


def kept(directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir() if file.name.startswith(".writing-")]


def test_a_file_whose_writer_is_gone_is_removed_when_the_next_one_writes(
    tmp_path: Path, gone: int
) -> None:
    left(tmp_path, gone)
    cache = GraphCache(tmp_path)
    assert cache.load("key") is None
    assert len(kept(tmp_path)) == 1
    cache.store("key", b"content")
    assert kept(tmp_path) == []
    assert cache.load("key") == b"content"


@pytest.mark.parametrize("process", [os.getpid(), 1, "earlier", 10**30, 0])
def test_only_age_tells_of_a_writer_that_may_be_alive(tmp_path: Path, process: object) -> None:
    file = left(tmp_path, process, age=3500)
    GraphCache(tmp_path).store("key", b"content")
    assert kept(tmp_path) == [file.name]
    left(tmp_path, process, age=3700)
    GraphCache(tmp_path).store("key", b"content")
    assert kept(tmp_path) == []


def test_a_writer_that_is_killed_leaves_a_file_that_names_it(tmp_path: Path) -> None:
    script = """if True:
        import os, signal, sys
        from pathlib import Path
        from tokenmill.backends.graph.cache import GraphCache
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        GraphCache(Path(sys.argv[1])).store("key", b"content")
    """
    command = [sys.executable, "-c", script, str(tmp_path)]
    killed = subprocess.Popen(command)
    assert killed.wait(timeout=60) != 0
    (name,) = kept(tmp_path)
    assert name.startswith(f".writing-{killed.pid}-")
    GraphCache(tmp_path).store("other", b"content")
    assert [file.suffix for file in tmp_path.iterdir()] == [".graph"]


def test_what_cannot_be_removed_does_no_harm(tmp_path: Path, gone: int) -> None:
    (tmp_path / f".writing-{gone}-folder").mkdir()
    GraphCache(tmp_path).store("key", b"content")
    assert GraphCache(tmp_path).load("key") == b"content"
