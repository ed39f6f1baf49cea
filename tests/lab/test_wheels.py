"""A wheel that kernels were added to is what pip accepts, and holds the rest unchanged."""

import argparse
import base64
import csv
import hashlib
import json
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvarn.commands.parsing.parser import module_of
from kvarn.jit import kernel_cache
from kvarn.jit.kernel_cache import elf, machine_code
from kvarn.jit.kernel_cache.relocations import AARCH64
from kvarn.jit.launch import launcher
from kvarn.runtime.attend.encoders.sidecar import own_encoders
from kvarn.runtime.capi.bundle import compile_into, for_all_targets
from kvarn.runtime.gguf import open_gguf
from lab.wheels import __main__ as wheels
from lab.wheels.needs import HEADS, WEIGHTS, tasks
from lab.wheels.repack import repack

METADATA = "Metadata-Version: 2.1\nName: kvarn\nVersion: 0.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    path = tmp_path / "kvarn-0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("kvarn/__init__.py", "answer = 42\n")
        wheel.writestr("kvarn-0.0.dist-info/METADATA", METADATA)
        wheel.writestr("kvarn-0.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("kvarn-0.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    folder = tmp_path / "bundled"
    (folder / "kernels" / "avx2-1").mkdir(parents=True)
    (folder / "targets.json").write_text('[["x86-64-v3", "+avx2"]]')
    (folder / "kernels" / "avx2-1" / "rows-1.code").write_bytes(bytes(range(256)))
    return folder


def test_every_file_is_recorded(pure: Path, bundled: Path) -> None:
    out = repack(pure, bundled, "manylinux_2_28_x86_64")
    assert out.name == "kvarn-0.0-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(out) as wheel:
        rows = {name: row for name, *row in csv.reader(
            wheel.read("kvarn-0.0.dist-info/RECORD").decode().splitlines())}  # fmt: skip
        assert set(rows) == set(wheel.namelist()) and len(rows) == 6
        for name, (digest, size) in rows.items():
            if name.endswith("RECORD"):
                continue
            data = wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(data))
        assert wheel.read("kvarn/bundled/kernels/avx2-1/rows-1.code") == bytes(range(256))
        tags = wheel.read("kvarn-0.0.dist-info/WHEEL").decode()
    assert "Tag: py3-none-manylinux_2_28_x86_64\n" in tags and "Root-Is-Purelib: false\n" in tags


def test_the_same_content_gives_the_same_wheel(pure: Path, bundled: Path) -> None:
    first = repack(pure, bundled, "manylinux_2_28_x86_64").read_bytes()
    (bundled / "targets.json").touch()
    assert repack(pure, bundled, "manylinux_2_28_x86_64").read_bytes() == first


@pytest.mark.skipif(sys.platform != "linux", reason="a wheel for Linux")
def test_pip_installs_it(pure: Path, bundled: Path, tmp_path: Path) -> None:
    wheel = repack(pure, bundled, "linux_x86_64" if sys.maxsize > 2**32 else "linux_i686")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*command, "--target", tmp_path / "to", "--platform", "linux_x86_64",
         "--only-binary=:all:", wheel],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernel = tmp_path / "to" / "kvarn" / "bundled" / "kernels" / "avx2-1" / "rows-1.code"
    assert kernel.read_bytes() == bytes(range(256))


def test_a_wheel_for_a_machine_is_refused(pure: Path, bundled: Path) -> None:
    other = pure.rename(pure.with_name("kvarn-0.0-py3-none-linux_x86_64.whl"))
    with pytest.raises(ValueError, match="expected NAME-py3-none-any"):
        repack(other, bundled, "manylinux_2_28_x86_64")


def test_what_a_wheel_has_is_named_by_models(tmp_path: Path) -> None:
    """Of each type of weights and each head size and group, the first ones of the list first."""
    names = [getattr(task, "path", Path()).stem for task in tasks(tmp_path, 2, 1)]
    assert [n for n in dict.fromkeys(names) if n.startswith(("weights", "heads"))] == [
        f"weights-{WEIGHTS[0]}", f"weights-{WEIGHTS[1]}",
        f"heads-{HEADS[0][0]}-{HEADS[0][1]}",
    ]  # fmt: skip
    assert not any(name.startswith("experts") for name in names)


def test_models_for_heads_choose_by_signatures_of_each_size(tmp_path: Path) -> None:
    """By those of encoders that `kvarn learn` makes by default, and without."""
    parser = argparse.ArgumentParser()
    module_of("learn").add(parser)
    (path,) = {task.path for task in tasks(tmp_path, 0, 1) if hasattr(task, "path")
               and task.path.stem.startswith("heads")}  # fmt: skip
    with open_gguf(path) as file:
        assert own_encoders(file).bits == parser.get_default("bits")


def test_a_kernel_that_is_not_kept_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, ran = set[str](), []
    monkeypatch.setattr(kernel_cache.Counts, "names", names)
    monkeypatch.setattr(launcher, "only_compile", lambda: None)  # else for all later tests, too
    rehearsals = [lambda: names.add("sources-1.digests"), lambda: names.add("lost-1.code"),
                  lambda: ran.append(1)]  # fmt: skip
    assert compile_into(tmp_path / "bundled", rehearsals) == 1
    assert not ran and not (tmp_path / "bundled").exists()
    assert "lost-1.code was compiled and could not be kept" in capsys.readouterr().err


FEWER = """
import sys
from types import SimpleNamespace

def task():
    from kvarn.ops.linear.linear import _get_rows
    _ = _get_rows("F16").address

sys.modules["lab.wheels.needs"] = SimpleNamespace(tasks=lambda *_: [task])
from lab.wheels.compile import main
sys.exit(main(*sys.argv[1:]))
"""


def test_kernels_of_another_machine_are_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher and a kernel, in the folder of the CPU's key, for its loader."""
    (tmp_path / "fewer.py").write_text(FEWER)
    (bundled := tmp_path / "bundled").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (target,) = wheels.MACHINES["aarch64"]
    words = ["aarch64", str(bundled), str(tmp_path / "models"), "0", "0"]
    for_all_targets([target], ["fewer", *words], bundled, tmp_path / "cache", lambda _: None)
    assert json.loads((bundled / "targets.json").read_text()) == [list(target)]
    key = hashlib.blake2b(repr(("aarch64", "neon", *target)).encode(), digest_size=12).hexdigest()
    files = sorted((bundled / "kernels" / f"neon-{key}").glob("*.code"))
    assert [file.name.partition("-")[0] for file in files] == ["get_rows", "kvarn_launch"]
    for file in files:
        code = machine_code.from_bytes(file.read_bytes()[32:])  # after the checksum
        assert elf.Object(code.object).machine == AARCH64
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert elf.can_load(code.object)


def test_wheels_are_made_on_x86(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "version", lambda _: "77.0")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sys, "argv", ["lab.wheels", str(tmp_path), "--machine", "aarch64"])
    assert wheels.main() == 1
    said = capsys.readouterr().err
    assert "it is made on Linux for x86-64, found" in said and "for riscv64" in said
