"""Cores, quota and memory as the kernel's files tell them, read from made-up trees."""

import os
import sys

import pytest

from kvarn.jit import machine, variant


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


# The line of /proc/cpuinfo, as these CPUs' Linux has it; whether kernels may use dot products and
# the 8-bit matrix product.
OLD = "fp asimd evtstrm"
COMMON = f"{OLD} aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
APPLE = "jscvt fcma lrcpc dcpop sha3 asimddp sha512 asimdfhm dit uscat ilrcpc flagm ssbs sb paca"
V1 = "jscvt fcma lrcpc dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs"
ARM = {
    "cortex-a53": (f"{OLD} aes pmull sha1 sha2 crc32 cpuid", False, False),
    "cortex-a72": (f"{OLD} crc32 cpuid", False, False),
    "cortex-a76": (f"{COMMON} lrcpc dcpop asimddp", True, False),
    "neoverse-n1": (f"{COMMON} lrcpc dcpop asimddp ssbs", True, False),
    "neoverse-v1": (
        f"{COMMON} {V1} paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng",
        True,
        True,
    ),
    "apple-m1": (f"{COMMON} {APPLE} pacg dcpodp flagm2 frint", True, False),
    "apple-m2": (f"{COMMON} {APPLE} pacg dcpodp flagm2 frint i8mm bf16 bti ecv", True, True),
}
CPU = """processor\t: {n}
BogoMIPS\t: 243.75
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


@pytest.mark.parametrize(("listed", "has_dot", "has_i8mm"), ARM.values(), ids=ARM)
def test_dot_products_of_arm_are_seen(tmp_path, listed, has_dot, has_i8mm):
    (tmp_path / "proc").mkdir()
    text = "".join(CPU.format(n=n, features=listed) for n in range(4))
    (tmp_path / "proc/cpuinfo").write_text(text)
    features = machine.features(tmp_path)
    assert {"neon", "fp-armv8"} <= features
    assert ("dotprod" in features, "i8mm" in features) == (has_dot, has_i8mm)
    expected = "neon" if has_dot else "generic"
    assert variant.choose(features, "aarch64") == expected


def test_x86_names_are_those_of_llvm(tmp_path):
    (tmp_path / "proc").mkdir()
    text = "processor\t: 0\nmodel name\t: flags: x\nflags\t\t: fpu sse4_2 avx2 f16c fma abm\n\n"
    (tmp_path / "proc/cpuinfo").write_text(text + text.replace("avx2", "avx512f"))
    assert machine.features(tmp_path) == {"fpu", "sse4.2", "avx2", "f16c", "fma", "lzcnt"}
    assert machine.features(tmp_path / "elsewhere") == frozenset()


@pytest.mark.parametrize(("having", "expected"), [
    ({"neon", "arm.FEAT_DotProd", "arm.FEAT_FP16"}, {"neon", "dotprod", "fullfp16"}),
    ({"neon", "arm.FEAT_DotProd", "arm.FEAT_I8MM"}, {"neon", "dotprod", "i8mm"}),
    (set(), set()),  # an Intel CPU
])  # fmt: skip
def test_macos_tells_them_one_by_one(monkeypatch, having, expected):
    known = {f"hw.optional.{name}": 1 for name in having} | {"hw.optional.arm.FEAT_BF16": 0}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_sysctl", known.get)
    assert machine.features() == expected


@pytest.mark.parametrize(("known", "expected"), [
    ({"hw.perflevel0.physicalcpu": 4, "hw.physicalcpu": 8}, 4),
    ({"hw.physicalcpu": 6}, 6),
    ({}, 3),
])  # fmt: skip
def test_macos_counts_its_fast_cores(monkeypatch, known, expected):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_sysctl", known.get)
    assert machine.cores([0, 1, 2]) == expected


def test_this_machine():
    assert 1 <= machine.physical_cores() <= (os.cpu_count() or 1)
    total, available = machine.memory()
    assert 0 < available <= total
