"""Which memory is moved to huge pages, and that the work can be ended."""

import mmap
import re
from pathlib import Path

from tokenmill.backends.ort import huge_pages
from tokenmill.backends.ort.huge_pages import HugePages, blocks_to_move

MIB = 2**20


def smaps(start, stop, *, rss, permissions="rw-p", name="", huge=0):
    return [
        f"{start:x}-{stop:x} {permissions} 00000000 00:00 0    {name}".rstrip(),
        f"Size:           {(stop - start) // 1024} kB",
        f"Rss:            {rss // 1024} kB",
        f"AnonHugePages:  {huge // 1024} kB",
        "VmFlags: rd wr mr mw me ac",
    ]


def test_a_full_mapping_gives_the_huge_pages_that_lie_inside_it():
    lines = smaps(5 * MIB, 11 * MIB, rss=6 * MIB)
    assert list(blocks_to_move(lines)) == [6 * MIB, 8 * MIB]


def test_the_heap_counts_as_anonymous_memory():
    assert list(blocks_to_move(smaps(2 * MIB, 4 * MIB, rss=2 * MIB, name="[heap]"))) == [2 * MIB]


def test_memory_that_is_sparse_shared_mapped_or_huge_is_left_alone():
    start, stop = 4 * MIB, 8 * MIB
    for lines in (
        smaps(start, stop, rss=2 * MIB),
        smaps(start, stop, rss=4 * MIB, permissions="r--p"),
        smaps(start, stop, rss=4 * MIB, permissions="rw-s"),
        smaps(start, stop, rss=4 * MIB, name="/models/model.onnx.data"),
        smaps(start, stop, rss=4 * MIB, huge=4 * MIB),
        smaps(start, start + MIB, rss=MIB),
    ):
        assert list(blocks_to_move(lines)) == []


def test_each_mapping_is_judged_by_its_own_figures():
    lines = smaps(2 * MIB, 4 * MIB, rss=2 * MIB) + smaps(8 * MIB, 16 * MIB, rss=0)
    assert list(blocks_to_move(lines)) == [2 * MIB]


def test_the_system_takes_the_blocks_that_are_named(monkeypatch):
    monkeypatch.setattr(huge_pages, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(huge_pages, "_are_on_request", lambda: True)
    with mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, 8 * MIB, 4096):
            memory[page] = page // 4096 % 251
        work = HugePages()
        work.start()
        work._thread.join()
        assert [memory[page] for page in range(0, 8 * MIB, 4096)] == [
            page // 4096 % 251 for page in range(0, 8 * MIB, 4096)
        ]


def test_nothing_is_started_where_the_system_never_gives_huge_pages(monkeypatch):
    monkeypatch.setattr(huge_pages, "_are_on_request", lambda: False)
    work = HugePages()
    work.start()
    assert work._thread is None
    work.stop()


def test_the_work_ends_when_it_is_told_to(monkeypatch):
    monkeypatch.setattr(huge_pages, "_PAUSE_SECONDS", 3600)
    monkeypatch.setattr(huge_pages, "_are_on_request", lambda: True)
    work = HugePages()
    work.start()
    work.stop()
    assert not work._thread.is_alive()


def test_this_system_describes_its_memory_in_the_form_that_is_read():
    lines = Path("/proc/self/smaps").read_text().splitlines()
    assert any(re.match(r"[0-9a-f]+-[0-9a-f]+ rw-p ", line) for line in lines)
    assert any(line.startswith("AnonHugePages:") for line in lines)
