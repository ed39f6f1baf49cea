"""An installation that has kernels runs them in a process whose cache is empty."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.jit import variant
from kvarn.runtime.capi.bundle import kernels

V3 = next((t for t in kernels.targets() if t.cpu == "x86-64-v3"), None)
pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64")
    or V3 is None
    or not V3.runs_on(variant.host_features()),
    reason="needs x86 with AVX2 on Linux",
)

# Two kernels, one of them parallel, and what launches them.
PROGRAM = """
import sys
from pathlib import Path
from kvarn.jit import bundled, machine
if "older" in sys.argv:
    older = machine.features() - {"avx2"}
    machine.features = lambda: older
bundled.FOLDER = Path(sys.argv[1]) / "bundled"
import numpy as np
from kvarn.jit import kernel_cache
from kvarn.jit import roots
if "versions" in sys.argv:
    roots.version = lambda package, file: "99.0"
from kvarn.ops.pointwise import add, rms_norm

x = np.arange(3 * 4096, dtype=np.float32).reshape(3, 4096)
out, weight = np.empty_like(x), np.ones(4096, np.float32)
add(x, x, out)
rms_norm(x, weight, 1e-6, out)
expected = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-6)
assert np.allclose(out, expected, rtol=1e-5), out
counts = kernel_cache.Counts
if "bundle" in sys.argv:
    kernel_cache.bundle(bundled.FOLDER)
print(counts.compiled, counts.loaded, *("numba" in sys.modules, "llvmlite" in sys.modules))
"""


def run(tmp_path: Path, *words: str, **environment: str) -> tuple[list[str], str]:
    """What the program prints, and its lines to the user."""
    tmp_path.joinpath("program.py").write_text(PROGRAM)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "KVARN_SIMD"))}
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path / "package", *words],
        env=inherited | {"KVARN_CACHE": str(tmp_path / f"cache-{len(words)}")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with kernels for x86-64-v3."""
    assert V3
    folder = tmp_path_factory.mktemp("installation")
    (folder / "package").mkdir()
    chosen = {"NUMBA_CPU_NAME": V3.cpu, "NUMBA_CPU_FEATURES": V3.features}
    (compiled, *_), _ = run(folder, "bundle", "to", "package", **chosen)
    assert int(compiled) > 0
    (folder / "package" / "bundled" / "targets.json").write_text(json.dumps([V3]))
    return folder / "package"


@pytest.fixture
def installed(package: Path, tmp_path: Path) -> Callable[..., tuple[list[str], str]]:
    """Runs the program in an installation of its own."""
    shutil.copytree(package, tmp_path / "package")
    return lambda *words, **environment: run(tmp_path, *words, **environment)


def test_an_empty_cache_needs_neither_compiler_nor_linker(installed) -> None:
    assert installed() == (["0", "3", "False", "False"], "")
    assert installed(KVARN_SIMD="avx2") == (["0", "3", "False", "False"], "")


def test_machine_code_serves_other_versions_of_python_and_numpy(installed) -> None:
    assert installed("versions") == (["0", "3", "False", "False"], "")


def test_a_damaged_kernel_is_told_and_compiled(installed, tmp_path: Path) -> None:
    (file,) = tmp_path.glob("package/bundled/kernels/*/norm_kernel*.code")
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    (compiled, loaded, *imported), said = installed()
    assert int(compiled) > 0 and loaded == "2" and imported == ["True", "True"]
    assert said == (
        "kvarn: a kernel that came with kvarn is damaged, compiling it: install kvarn again: "
        f"{file}\n"
    )
    (compiled, loaded, *_), said = installed()  # it was kept in the cache
    assert (compiled, loaded) == ("0", "3") and said.count("\n") == 1


def test_a_kernel_of_another_name_is_refused(installed, tmp_path: Path) -> None:
    """A file whose checksum is right, but for another kernel."""
    files = sorted(tmp_path.glob("package/bundled/kernels/*/*.code"))
    (other,) = (file for file in files if file.name.startswith("elementwise"))
    (file,) = (file for file in files if file.name.startswith("norm"))
    file.write_bytes(other.read_bytes())
    (compiled, *_), said = installed()
    assert int(compiled) > 0 and said.count("\n") == 1 and str(file) in said


def test_an_older_cpu_compiles_its_own_and_says_why(installed) -> None:
    (compiled, *_), said = installed("older", "cpu")
    assert int(compiled) > 0
    assert said == (
        "kvarn: cannot use the kernels that came with kvarn, compiling others: "
        "this CPU has no avx2\n"
    )


def test_a_cpu_without_its_kernels_says_so(installed, tmp_path: Path) -> None:
    (folder,) = tmp_path.glob("package/bundled/kernels/*")
    folder.rename(folder.with_name("other"))
    (compiled, *_), said = installed()
    assert int(compiled) > 0 and "has none for x86-64-v3: install kvarn again" in said
    assert said.count("\n") == 1
