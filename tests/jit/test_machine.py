"""Cores, quota and memory as the kernel's files tell them, read from made-up trees."""

import os

import pytest

from kvarn.jit import machine


@pytest.fixture
def tree(tmp_path):
    def write(**files):
        for path, text in files.items():
            place = tmp_path / path.replace("__", "/").replace("DOT", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path

    return write


def _topology(tmp_path, siblings):
    for cpu, text in enumerate(siblings):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(text + "\n")


def test_hyperthreads_are_one_core(tmp_path):
    _topology(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert machine.cores(list(range(8)), tmp_path) == 4
    assert machine.cores([0, 4], tmp_path) == 1
    assert machine.cores([0, 5], tmp_path) == 2
    assert machine.cores([11, 12], tmp_path) == 2  # nothing known: each its own


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", None), ("150000 100000", 1.5), ("400000 100000", 4.0), ("", None)],
)
def test_quota_of_control_groups_v2(tmp_path, quota, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    for folder, text in (("a/b", "max 100000"), ("a", quota)):
        (tmp_path / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup" / folder / "cpu.max").write_text(text)
    assert machine.cpu_quota(tmp_path) == expected


def test_quota_of_control_groups_v1_as_a_container_sees_it(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n")
    group = tmp_path / "sys/fs/cgroup/cpu"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("250000")
    (group / "cpu.cfs_period_us").write_text("100000")
    assert machine.cpu_quota(tmp_path) == 2.5
    (group / "cpu.cfs_quota_us").write_text("-1")
    assert machine.cpu_quota(tmp_path) is None


def test_default_threads_obey_the_quota(tmp_path, monkeypatch):
    _topology(tmp_path, [str(cpu) for cpu in range(8)])
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(8)))
    assert machine.physical_cores(tmp_path) == 8
    for quota, expected in ((2.5, 2), (0.5, 1), (100, 8)):
        monkeypatch.setattr(machine, "cpu_quota", lambda root, q=quota: q)
        assert machine.physical_cores(tmp_path) == expected


def test_memory_within_the_group_limit(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    assert machine.memory(tmp_path) == (4000 * 1024, 3000 * 1024)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(str(1 << 20))
    (group / "memory.current").write_text(str(1 << 19))
    assert machine.memory(tmp_path) == (1 << 20, 1 << 19)
    (group / "memory.stat").write_text("anon 7\ninactive_file 1024\n")
    assert machine.memory(tmp_path) == (1 << 20, (1 << 19) + 1024)
    (group / "memory.max").write_text("max")
    assert machine.memory(tmp_path) == (4000 * 1024, 3000 * 1024)


def test_this_machine():
    assert 1 <= machine.physical_cores() <= (os.cpu_count() or 1)
    total, available = machine.memory()
    assert 0 < available <= total
