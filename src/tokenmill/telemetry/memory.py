"""Memory as the operating system counts it: what this process has, and what it can still take."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class AvailableMemory(NamedTuple):
    """What this process can still take before others suffer, or it is killed.

    Attributes:
        bytes: at least 0.
        bound: what sets it: "the machine", or "the cgroup PATH".
    """

    bytes: int
    bound: str


def peak_resident_bytes() -> int:
    """Returns the most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int | None:
    """Returns the memory resident now, in bytes; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns what `available_memory` finds, in bytes; None where the system does not say."""
    found = available_memory(root)
    return None if found is None else found.bytes


def available_memory(root: Path = Path("/")) -> AvailableMemory | None:
    """Returns the least of what the machine and each enclosing cgroup have left.

    Memory that holds cached files counts as free, since the kernel gives it up first; but for the
    files that this process has mapped, its weights above all: to lose them is to read them again
    at every step. Swap counts as nothing.

    A cgroup's rest is its limit minus its use, version 1 and version 2 alike; of version 2 the
    lower of `memory.max` and `memory.high`, past which it is slowed down.

    Args:
        root: where `proc` and the cgroups' mount points are found.

    Returns:
        None where there is no `/proc/meminfo`, that is outside Linux.
    """
    machine = _pairs(root / "proc/meminfo").get("MemAvailable")
    if machine is None:
        return None
    mapped = 1024 * _pairs(root / "proc/self/status").get("RssFile", 0)
    rest = [AvailableMemory(1024 * machine - mapped, "the machine")]
    for group in _cgroups(root):
        free = group.free_bytes(mapped)
        if free is not None:
            rest.append(AvailableMemory(free, f"the cgroup {group.name}"))
    least = min(rest, key=lambda one: one.bytes)
    return least._replace(bytes=max(0, least.bytes))


class _Cgroup(NamedTuple):
    """A control group that limits this process.

    Attributes:
        name: its path in the hierarchy, as the process sees it.
        directory: its files.
        limits: names of the files that each hold a limit.
        usage: name of the file that holds what it uses, cached files included.
        cached: the key of `memory.stat` for the files that the kernel gives up first.
    """

    name: str
    directory: Path
    limits: tuple[str, ...]
    usage: str
    cached: str

    def free_bytes(self, mapped: int) -> int | None:
        """Returns the limit minus what is used and stays used; None where there is no limit."""
        limits = [_number(self.directory / name) for name in self.limits]
        used = _number(self.directory / self.usage)
        known = [limit for limit in limits if limit is not None]
        if not known or used is None:
            return None
        cached = _pairs(self.directory / "memory.stat").get(self.cached, 0)
        return min(known) - used + max(0, cached - mapped)


_FILES = {
    "cgroup": (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    "cgroup2": (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}
"""A file system's type to the rest of `_Cgroup`."""


def _cgroups(root: Path) -> Iterator[_Cgroup]:
    """Yields the groups that hold this process, the innermost first, up to the mounted one."""
    own: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own["cgroup2"] = path
        elif "memory" in controllers.split(","):
            own["cgroup"] = path
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, of_type = line.partition(" - ")
        kind, _, options = of_type.split(" ", 2)
        if kind not in own or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        top, point = (_unescaped(word) for word in mount.split()[3:5])
        # A container may see only its own group, mounted as if it were the top.
        seen = PurePosixPath(own[kind])
        inside = seen.relative_to(top) if seen.is_relative_to(top) else PurePosixPath()
        if ".." in inside.parts:
            inside = PurePosixPath()
        for part in (inside, *inside.parents):
            name = str(PurePosixPath("/") / part)
            yield _Cgroup(name, root / point.lstrip("/") / part, *_FILES[kind])


def _unescaped(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _pairs(file: Path) -> Mapping[str, int]:
    """Reads lines such as "MemAvailable:   12 kB" and "inactive_file 12"."""
    found = {}
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0].rstrip(":")] = int(words[1])
    return found
