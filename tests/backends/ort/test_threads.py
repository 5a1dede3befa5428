from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenmill.backends.ort.threads import usable_processors


@pytest.fixture
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.usefixtures("eight_processors")
def test_without_a_quota_affinity_counts(tmp_path: Path) -> None:
    assert usable_processors(tmp_path) == 8


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)]
)
def test_the_quota_of_version_2(tmp_path: Path, quota: str, expected: int) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/app/worker\n")
    write(tmp_path, "sys/fs/cgroup/app/cpu.max", quota)
    write(tmp_path, "sys/fs/cgroup/app/worker/cpu.max", "max 100000")
    assert usable_processors(tmp_path) == expected


@pytest.mark.usefixtures("eight_processors")
def test_the_quota_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/app\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "200000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_processors(tmp_path) == 2


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= usable_processors() <= (os.cpu_count() or 1)
