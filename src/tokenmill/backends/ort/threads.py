"""How many processors this process may really use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_processors(root: Path = Path("/")) -> int:
    """Returns the processors that affinity and the control group's quota allow, at least 1.

    Args:
        root: of the file system that is asked for quotas.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _quota(root)
    return allowed if quota is None else max(1, min(allowed, quota))


def _quota(root: Path) -> int | None:
    """Returns the whole processors of the tightest quota up the hierarchy, or None.

    Sources: docs.kernel.org admin-guide/cgroup-v2 (cpu.max) and scheduler/sched-bwc (v1).
    """
    limits: list[int] = []
    names: tuple[str, ...]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        folder = base / path.lstrip("/")
        while True:
            words = " ".join(_read(folder / name) for name in names).split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                limits.append(max(1, int(words[0]) // int(words[1])))
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(limits, default=None)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
