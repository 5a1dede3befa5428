"""Available memory, found below a root that stands in for the machine's own."""

import mmap

import pytest

from tokenmill.telemetry.memory import (
    AvailableMemory,
    available_bytes,
    available_memory,
    resident_bytes,
)

MIB = 2**20
UNLIMITED = 9223372036854771712


def write(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def machine(tmp_path, *, available=1000, mapped=0, cgroup="", mounts=""):
    """A root with this much available, and mapped from files, in MiB."""
    return write(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:   {available * 1024} kB\n",
            "proc/self/status": f"Name:\tpython\nRssFile:\t{mapped * 1024} kB\n",
            "proc/self/cgroup": cgroup,
            "proc/self/mountinfo": mounts,
        },
    )


def mount_2(root="/", point="/sys/fs/cgroup"):
    return f"30 23 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def mount_1(root="/", point="/sys/fs/cgroup/memory"):
    return (
        "31 23 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        f"35 31 0:32 {root} {point} rw,relatime - cgroup cgroup rw,memory\n"
    )


def group_2(directory, *, limit="max", high="max", used=0, cached=0):
    """The files of a version 2 group; numbers are MiB."""
    numbers = {"memory.max": limit, "memory.high": high, "memory.current": used}
    files = {
        f"{directory}/{name}": f"{value if value == 'max' else value * MIB}\n"
        for name, value in numbers.items()
    }
    files[f"{directory}/memory.stat"] = f"anon 5\ninactive_file {cached * MIB}\nactive_file 7\n"
    return files


def group_1(directory, *, limit=None, used=0, cached=0):
    size = UNLIMITED if limit is None else limit * MIB
    return {
        f"{directory}/memory.limit_in_bytes": f"{size}\n",
        f"{directory}/memory.usage_in_bytes": f"{used * MIB}\n",
        f"{directory}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cached * MIB}\n",
    }


def test_without_cgroups_the_machine_decides(tmp_path):
    root = machine(tmp_path)
    assert available_memory(root) == AvailableMemory(1000 * MIB, "the machine")
    assert available_bytes(root) == 1000 * MIB


def test_a_system_that_does_not_say_has_no_figure(tmp_path):
    assert available_memory(tmp_path) is None
    assert available_bytes(tmp_path) is None


def test_files_that_the_process_has_mapped_are_not_free(tmp_path):
    assert available_bytes(machine(tmp_path, mapped=300)) == 700 * MIB


def test_a_version_2_limit_less_its_use(tmp_path):
    root = machine(tmp_path, cgroup="0::/app.slice\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app.slice", limit=500, used=120))
    assert available_memory(root) == AvailableMemory(380 * MIB, "the cgroup /app.slice")


def test_a_larger_limit_than_the_machine_has_does_not_count(tmp_path):
    root = machine(tmp_path, cgroup="0::/app\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app", limit=5000))
    assert available_memory(root) == AvailableMemory(1000 * MIB, "the machine")


def test_the_throttling_limit_counts_where_it_is_lower(tmp_path):
    root = machine(tmp_path, cgroup="0::/app\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app", limit=500, high=400, used=100))
    assert available_bytes(root) == 300 * MIB


def test_the_throttling_limit_alone_counts(tmp_path):
    root = machine(tmp_path, cgroup="0::/app\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app", high=400, used=100))
    assert available_bytes(root) == 300 * MIB


def test_an_outer_group_can_have_less_left(tmp_path):
    root = machine(tmp_path, cgroup="0::/outer/inner\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/outer/inner", limit=500, used=100))
    write(root, group_2("sys/fs/cgroup/outer", limit=600, used=450))
    assert available_memory(root) == AvailableMemory(150 * MIB, "the cgroup /outer")


def test_cached_files_of_a_group_are_free_but_for_those_mapped_by_the_process(tmp_path):
    root = machine(tmp_path, mapped=50, cgroup="0::/app\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app", limit=500, used=400, cached=200))
    assert available_bytes(root) == 250 * MIB


def test_a_group_past_its_limit_leaves_nothing(tmp_path):
    root = machine(tmp_path, cgroup="0::/app\n", mounts=mount_2())
    write(root, group_2("sys/fs/cgroup/app", limit=100, used=130))
    assert available_bytes(root) == 0


def test_a_version_1_limit(tmp_path):
    root = machine(tmp_path, cgroup="5:cpu:/\n4:memory:/outer/job\n0::/\n", mounts=mount_1())
    write(root, group_1("sys/fs/cgroup/memory/outer/job", limit=400, used=300, cached=60))
    write(root, group_1("sys/fs/cgroup/memory/outer"))
    write(root, group_1("sys/fs/cgroup/memory"))
    assert available_memory(root) == AvailableMemory(160 * MIB, "the cgroup /outer/job")


def test_version_1_without_a_limit(tmp_path):
    root = machine(tmp_path, cgroup="4:memory:/\n", mounts=mount_1())
    write(root, group_1("sys/fs/cgroup/memory", used=300))
    assert available_memory(root) == AvailableMemory(1000 * MIB, "the machine")


@pytest.mark.parametrize("seen", ["/docker/abc", "/docker/abc/job"])
def test_a_container_that_sees_only_its_own_group(tmp_path, seen):
    root = machine(tmp_path, cgroup=f"4:memory:{seen}\n", mounts=mount_1("/docker/abc"))
    write(root, group_1("sys/fs/cgroup/memory", limit=250, used=50))
    assert available_bytes(root) == 200 * MIB


@pytest.mark.parametrize(("seen", "top"), [("/../../../other", "/"), ("/elsewhere", "/pod")])
def test_a_group_outside_of_what_is_mounted_leaves_the_mounted_one(tmp_path, seen, top):
    root = machine(tmp_path, cgroup=f"0::{seen}\n", mounts=mount_2(top))
    write(root, group_2("sys/fs/cgroup", limit=250, used=50))
    write(root, group_2("other", limit=100))
    assert available_memory(root) == AvailableMemory(200 * MIB, "the cgroup /")


def test_another_controllers_group_of_the_same_name_does_not_count(tmp_path):
    root = machine(tmp_path, cgroup="4:memory:/job\n5:cpu:/job\n", mounts=mount_1())
    write(root, group_1("sys/fs/cgroup/cpu/job", limit=100))
    assert available_memory(root) == AvailableMemory(1000 * MIB, "the machine")


def test_a_mount_point_with_a_space(tmp_path):
    root = machine(tmp_path, cgroup="0::/app\n", mounts=mount_2(point="/my\\040groups"))
    write(root, group_2("my groups/app", limit=250, used=50))
    assert available_bytes(root) == 200 * MIB


def test_this_machine_says_how_much_there_is():
    found = available_memory()
    assert found is not None
    assert found.bytes > 0


def test_resident_memory_grows_with_what_is_touched():
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MIB) as memory:
        for page in range(0, 64 * MIB, mmap.PAGESIZE):
            memory[page] = 1
        assert resident_bytes() - before > 60 * MIB
