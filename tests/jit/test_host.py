"""What LLVM says of this CPU is asked once in a boot, and what it does not say of ARM is added."""

import platform
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from kvarn.jit import host, machine, roots


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without files, in a boot of its own."""
    monkeypatch.setattr(roots, "candidates", lambda: [tmp_path / "absent", tmp_path])
    monkeypatch.setattr(machine, "boot", lambda: "b0075")
    monkeypatch.setattr(host._State, "new", None)
    (tmp_path / "kernels").mkdir(mode=0o755)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one where LLVM is asked, and then has another name for the CPU."""
    names: list[str] = []

    def name() -> str:
        names.append(f"cpu-{len(names)}")
        return names[-1]

    monkeypatch.setattr(llvm, "get_host_cpu_name", name)
    return names


def test_the_next_process_need_not_ask(root: Path, asked: list[str]) -> None:
    first = host.described()
    assert first == ("cpu-0", llvm.get_host_cpu_features().flatten())
    host.keep(root / "kernels")
    assert host.described() == first and len(asked) == 1
    (root / "kernels" / host.FILE).unlink()
    host.keep(root / "kernels")  # it is kept once
    assert host.described()[0] == "cpu-1"


def test_what_the_answer_depends_on_is_told_apart(
    root: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.described()
    host.keep(root / "kernels")
    for of, name, value in (
        (machine, "boot", lambda: "another"),
        (machine, "features", lambda: frozenset({"neon"})),
        (platform, "machine", lambda: "riscv64"),
        (roots, "version", lambda package, file: "99.0"),
        (machine, "boot", lambda: ""),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(of, name, value)
            n_asked = len(asked)
            assert host.described()[0] == f"cpu-{n_asked}"
            assert len(asked) == n_asked + 1
    assert host.described()[0] == "cpu-0"


def test_without_a_number_of_the_boot_nothing_is_kept(
    root: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "boot", lambda: "")
    host.described()
    host.keep(root / "kernels")
    assert not list((root / "kernels").iterdir())


def test_a_damaged_file_counts_as_absent(root: Path, asked: list[str]) -> None:
    host.described()
    host.keep(root / "kernels")
    path = root / "kernels" / host.FILE
    whole = path.read_bytes()
    (depends_on, name, features, _) = whole.split(b"\n")
    damaged = [
        whole[:40], whole + b"more\n", whole[1:], b"", b"\xff" + whole,
        b"\n".join((depends_on, b"a b", features, b"")),
        b"\n".join((depends_on, name, features + b",avx", b"")),
        b"\n".join((depends_on, name, features)),
        b"\n".join((depends_on, name, b"")),
    ]  # fmt: skip
    for n, data in enumerate(damaged, start=1):
        path.write_bytes(data)
        assert host.described()[0] == f"cpu-{n}", data
    path.write_bytes(whole)
    assert host.described()[0] == "cpu-0"


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_can_write_is_not_read(root: Path, asked: list[str], mode: int) -> None:
    host.described()
    host.keep(root / "kernels")
    (root / "kernels" / host.FILE).chmod(mode)
    assert host.described()[0] == "cpu-1"


def test_features_that_llvm_does_not_see_on_arm_are_added(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And LLVM knows all of them: of a name that it does not know, it would complain."""
    seen = {"neon": True, "lse": True, "sve": False}
    listed = frozenset({"neon", "dotprod", "i8mm", "bf16", "fullfp16", "lse", "paca", "sve"})
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: seen)
    monkeypatch.setattr(machine, "features", lambda: listed)
    assert host.flags() == seen
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    features = host.flatten(host.flags())
    assert features == "+bf16,+dotprod,+fullfp16,+i8mm,+lse,+neon,-sve"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-linux-gnu")
    module = llvm.parse_assembly("define void @f() {\n  ret void\n}")
    for name, complains in ((features, False), ("+no-such-one", True)):
        target.create_target_machine(cpu="generic", features=name).emit_assembly(module)
        assert ("not a recognized feature" in capfd.readouterr().err) == complains
