"""The library, built once, and programs that use it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        pytest.skip("there is no C compiler: install one, or name it in CC")
    return found


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """That of a program: nothing that Python reads, but where kernels and packs are."""
    kept = ("HOME", "KVARN_CACHE", "KVARN_HOME", "XDG_CACHE_HOME", "PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """The folder of libkvarn; skips where it cannot be built."""
    if find_spec("cffi") is None:
        pytest.skip("cffi is not installed: pip install cffi")
    if sys.platform != "linux" or not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library (libpython3.so)")
    out = tmp_path_factory.mktemp("built") / "libkvarn"
    # As installed: all folders of this process, in which kvarn and its packages are.
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "kvarn.runtime.capi", "--out", str(out)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}/lib/libkvarn.so\n"
    assert done.stderr == ""
    return out


Compile = Callable[[Path], Path]


@pytest.fixture(scope="session")
def compiled(built: Path, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a program."""
    folder = tmp_path_factory.mktemp("programs")

    def compile(source: Path) -> Path:
        program = folder / source.stem
        if not program.exists():
            lib = built / "lib"
            command = [
                *(compiler, "-std=c99", *STRICT, str(source), "-o", str(program)),
                *(f"-I{built / 'include'}", f"-L{lib}", "-lkvarn", f"-Wl,-rpath,{lib}"),
                *("-pthread", "-ldl"),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return program

    return compile


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run(compiled: Compile, environment: dict[str, str]) -> Run:
    """Runs a program of this folder, or an example."""

    def run(source: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(compiled(source)), *map(str, words)], env={**environment, **variables},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def probe(run: Run) -> Callable[..., dict[str, str]]:
    """What `probe.c` finds: its lines, by their first words; a word said twice has the last."""

    def probe(*words: object) -> dict[str, str]:
        done = run(HERE / "probe.c", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return dict(line.split(" ", 1) for line in done.stdout.splitlines())

    return probe


@pytest.fixture(scope="session")
def host(built: Path, environment: dict[str, str]) -> Callable[..., Any]:
    """Runs a script of this folder, a program that runs Python already; gives what it found.

    code: the exit code that it is to have; other than 0, it found nothing. within: words of a
    command that runs it.
    """

    def host(script: str, *words: object, code: int = 0, within: Sequence[str] = ()) -> Any:
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [*within, sys.executable, str(HERE / script), f"{built}/lib/libkvarn.so",
             *map(str, words)],
            env={**environment, "PYTHONPATH": paths},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout) if code == 0 else None

    return host
