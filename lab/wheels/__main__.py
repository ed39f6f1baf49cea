"""`python -m lab.wheels DIST`: the sdist, the wheel for any machine, and one with kernels."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from kvarn.jit import kernel_cache
from kvarn.jit.bundled import Target
from kvarn.jit.kernel_cache import folders
from kvarn.runtime.capi.bundle import X86, for_all_targets
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show_path
from kvarn.system.text import one_line
from lab.arm.machine import CPUS

from .needs import HEADS, WEIGHTS
from .repack import repack

SETUPTOOLS = 77
"""Which knows the keys of pyproject.toml."""
ROOT = Path(__file__).resolve().parents[2]
HERE = "x86_64"
MACHINES = {HERE: X86, "aarch64": [Target("cortex-a76", CPUS["cortex-a76"][1])]}
"""The CPUs to compile for, best first. Of ARM's extensions, kernels use dot products alone."""
PLATFORM = "manylinux_2_28"
"""Kernels call glibc's mathematics and GNU's OpenMP, of any version."""


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.wheels", description=__doc__)
    parser.add_argument("out", metavar="DIST", type=Path)
    parser.add_argument(
        "--machine", choices=MACHINES, default=HERE, help="what the kernels are for (%(default)s)"
    )
    for name, known in (("weights", WEIGHTS), ("heads", HEADS)):
        parser.add_argument(
            f"--{name}",
            metavar="N",
            type=int,
            choices=range(len(known) + 1),
            default=len(known),
            help="kernels for the first N of that list in lab/wheels/needs.py (%(default)s)",
        )
    options = parser.parse_args()
    try:
        for path in build(options.out.absolute(), options.machine, options.weights, options.heads):
            show_path(path)
    except (KvarnError, OSError) as error:
        say(str(error))
        return 1
    return 0


def build(out: Path, machine: str, n_weights: int, n_heads: int) -> list[Path]:
    """Write all to the folder `out`; their paths. machine: of `MACHINES`. Raises `KvarnError`."""
    newest = version("setuptools")
    if int(newest.partition(".")[0]) < SETUPTOOLS:
        raise KvarnError(
            f"making a wheel: setuptools is {newest}, expected {SETUPTOOLS} or newer: "
            f"pip install 'setuptools>={SETUPTOOLS}'"
        )
    if (sys.platform, platform.machine()) != ("linux", HERE):
        raise KvarnError(
            "making a wheel with kernels: it is made on Linux for x86-64, found "
            f"{sys.platform} for {platform.machine()}"
        )
    cache = kernel_cache.place()
    if cache is None:
        raise KvarnError("making a wheel: compiled kernels cannot be kept: see `kvarn doctor`")
    sdist, pure = _from_setuptools(out)
    _check_sources(pure)
    with tempfile.TemporaryDirectory() as temporary:
        bundled = Path(temporary, "bundled")
        bundled.mkdir()
        models = Path(temporary, "models")
        words = [machine, *map(str, (bundled, models, n_weights, n_heads))]
        kept = cache.parents[1] / "wheels"
        for_all_targets(MACHINES[machine], ["lab.wheels.compile", *words], bundled, kept, say)
        wheel = repack(pure, bundled, f"{PLATFORM}_{machine}")
    say(f"{wheel.stat().st_size / 1e6:.1f} MB {wheel.name}")
    return [sdist, pure, wheel]


def _from_setuptools(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel for any machine, which is made of what the sdist has alone."""
    out.mkdir(parents=True, exist_ok=True)
    sdist = out / _setuptools("sdist", out, ROOT)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        return sdist, out / _setuptools("wheel", out, root)


def _setuptools(kind: str, out: Path, root: Path) -> str:
    """Build from the folder `root` into `out`; the file's name."""
    program = f"from setuptools import build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KvarnError(f"making the {kind}: setuptools failed: {one_line(done.stderr[-300:])}")
    return done.stdout.splitlines()[-1]


def _check_sources(pure: Path) -> None:
    """Kernels are found by the hash of their sources, so that the wheel needs the sources here."""
    with zipfile.ZipFile(pure) as wheel:
        sources = {
            name.removeprefix("kvarn/"): wheel.read(name)
            for name in wheel.namelist()
            if name.startswith(("kvarn/jit/", "kvarn/ops/")) and name.endswith(".py")
        }
    here = folders.read_sources()
    if sources != here:
        other = sorted(n for n in sources | here if sources.get(n) != here.get(n))[0]
        raise KvarnError(f"making the wheel: {other} is not the same in the wheel and here")


if __name__ == "__main__":
    sys.exit(main())
