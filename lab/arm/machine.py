"""An ARM Python with kvarn's packages, in the folder .arm of the checkout.

    .arm/
      ├─ cortex-a76, neoverse-v1    run it on these CPUs; pyvenv.cfg: where its library is
      ├─ root/      the distribution's Python for arm64, unpacked (apt-get, as any user)
      ├─ site/      wheels for aarch64, of the versions that this environment has (pip)
      ├─ package/   kvarn → the checkout
      ├─ start/     sitecustomize.py, which installs `ask`
      └─ cache/, outside/, home/    kernels, those of `compile`, models and packs

Nothing outside of the folder changes. Programs are started by the ARM loader, not by qemu's `-L`,
which would send other absolute paths to the unpacked tree, too.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say
from kvarn.system.text import one_line

from .ask import ARM, OUTSIDE, ROOT

QEMU = "qemu-aarch64-static"
_COMMON = "+crc,+dotprod,+fp-armv8,+fullfp16,+lse,+neon,+rcpc,+rdm"
"""What LLVM may use of a Cortex-A76, by the names that `jit.machine` has of them."""
CPUS = {
    "cortex-a76": ("cortex-a76", _COMMON),
    "neoverse-v1": ("max", f"{_COMMON},+bf16,+i8mm"),
}
"""By LLVM's names: qemu's name, and features. The first has `sdot` alone and stops at any
instruction beyond it (Raspberry Pi 5, Apple M1); the second has i8mm (Graviton 3, Apple M2)."""
_PACKAGES = "python3", "libgomp1", "libstdc++6"
_TESTS = "pytest>=8", "hypothesis>=6.100"
_GLIBC = range(17, 36)
"""Minor versions of glibc 2 that packages may need: Ubuntu 22.04 has 2.35."""
_APT = """Dir::State "{0}"; Dir::State::status "{0}/status"; Dir::State::lists "{0}/lists";
Dir::Cache "{0}"; Dir::Cache::archives "{0}/archives";
APT::Architecture "arm64"; APT::Architectures {{ "arm64"; }}; APT::Sandbox::User "";
"""


def why_not() -> str:
    """Why there can be no emulation here; "" if there can be."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"it runs on Linux for x86-64, this is {sys.platform} for {platform.machine()}"
    programs = {QEMU: "qemu-user-static", "apt-get": "apt", "dpkg-deb": "dpkg"}
    missing = [package for program, package in programs.items() if not shutil.which(program)]
    return f"install {', '.join(missing)} (Debian, Ubuntu)" if missing else ""


def prepare() -> None:
    """Make the folder, if it is not ready. Raises `KvarnError`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = [*tomllib.load(file)["project"]["dependencies"], *_TESTS]
    ready = ARM / "ready"
    if not ready.exists() or ready.read_text() != "\n".join(needed):
        unpack_python()
        say(f"arm: downloading packages for aarch64 to {ARM}, once (100 MB)")
        install(needed, ARM / "site")
        ready.write_text("\n".join(needed))
    for name in ("package", "start", "home"):
        (ARM / name).mkdir(exist_ok=True)
    link = ARM / "package" / "kvarn"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT)
    (ARM / "start" / "sitecustomize.py").write_text(
        "from lab.arm.ask import install\n\ninstall()\n"
    )
    paths = ":".join(str(path) for path in (ARM / "start", ARM / "package", ROOT, ARM / "site"))
    for cpu, (_, features) in CPUS.items():
        chosen = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
        write_launcher(ARM / cpu, cpu, {"PYTHONPATH": paths} | chosen)


def environment(python: str) -> dict[str, str]:
    """Of a process: its models and packs, and in the emulator its kernels, stay in the folder."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KVARN_")}
    own = {"KVARN_HOME": str(ARM / "home"), OUTSIDE: sys.executable}
    return plain | own | ({"KVARN_CACHE": str(ARM / "cache")} if python != sys.executable else {})


def unpack_python() -> None:
    """Make the folder `root`, if it is not there. Raises `KvarnError`."""
    if (root := ARM / "root").exists():
        return
    say(f"arm: downloading Python for aarch64 to {ARM}, once")
    apt, part = ARM / "apt", ARM / "root.part"
    shutil.rmtree(part, ignore_errors=True)
    for folder in ("lists", "archives"):
        (apt / folder / "partial").mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "conf").write_text(_APT.format(apt))
    get = ("env", f"APT_CONFIG={apt / 'conf'}", "apt-get", "-qq")
    _call("reading apt's lists for arm64", *get, "update")
    _call(
        "downloading Python for arm64 (on Ubuntu, apt's sources need ports.ubuntu.com)",
        *(*get, "--yes", "--no-install-recommends", "--download-only", "install"),
        *_PACKAGES,
    )
    for package in sorted((apt / "archives").glob("*.deb")):
        _call(f"unpacking {package.name}", "dpkg-deb", "-x", str(package), str(part))
    part.rename(root)


def install(needed: Sequence[str], to: Path) -> None:
    """Install packages for aarch64, those of this environment in its versions, to a folder."""
    python = (ARM / "root/usr/bin/python3").readlink().name  # "python3.11"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    frozen = _call("listing packages", *pip, "freeze", "--exclude-editable")
    (names := ARM / "names.txt").write_text(frozen)
    platforms = [f"--platform=manylinux_2_{version}_aarch64" for version in _GLIBC]
    words = (*pip, "install", "--upgrade", "--only-binary=:all:", "--implementation=cp", *platforms)
    _call(
        "installing packages for aarch64",
        *(*words, "--platform=manylinux2014_aarch64", f"--target={to}", f"--constraint={names}"),
        *(f"--python-version={python.removeprefix('python')}", *needed),
    )


def write_launcher(to: Path, cpu: str, environment: Mapping[str, str]) -> None:
    """Write a shell script that is the ARM Python on a CPU, also for processes which that starts.

    environment: variables that it sets, as a shell reads them between double quotes.
    """
    root, (emulated, _) = ARM / "root", CPUS[cpu]
    libraries = f"{root}/lib/aarch64-linux-gnu:{root}/usr/lib/aarch64-linux-gnu"
    exported = " ".join(f'{name}="{value}"' for name, value in environment.items())
    # Not PYTHONHOME, which a process without an environment, as templates have, would lack.
    to.with_name("pyvenv.cfg").write_text(f"home = {root}/usr/bin\n")
    to.write_text(
        f"#!/bin/sh\nexport {exported}\n"
        f"exec {QEMU} -cpu {emulated} '{root}/lib/ld-linux-aarch64.so.1' --argv0 \"$0\" "
        f"--library-path '{libraries}' '{root}/usr/bin/python3' \"$@\"\n"
    )
    to.chmod(0o755)


def _call(doing: str, *command: str) -> str:
    """A command's output. Raises `KvarnError` where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KvarnError(f"arm: {doing}: {one_line(done.stderr.strip()[-300:])}")
    return done.stdout
