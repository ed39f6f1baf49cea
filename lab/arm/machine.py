"""An ARM Python with kvarn's packages, in the folder .arm of the checkout.

    .arm/
      ├─ cortex-a76, neoverse-v1    run it on these CPUs
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

from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say
from kvarn.system.text import one_line

from .ask import ARM, OUTSIDE, ROOT

QEMU = "qemu-aarch64-static"
_COMMON = "+aes,+crc,+dotprod,+fp-armv8,+fullfp16,+lse,+neon,+sha2"
CPUS = {
    "cortex-a76": ("cortex-a76", _COMMON),
    "neoverse-v1": ("max", f"{_COMMON},+bf16,+i8mm"),
}
"""By LLVM's names: qemu's name, and features. The first has `sdot` alone and stops at any
instruction beyond it (Raspberry Pi 5, Apple M1); the second has i8mm (Graviton 3, Apple M2)."""
_PACKAGES = "python3", "libgomp1", "libstdc++6"
_TESTS = "pytest>=8", "hypothesis>=6.100"
_GLIBC = "2_17", "2_27", "2_28", "2_34"
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
        say(f"arm: downloading Python and packages for aarch64 to {ARM}, once (100 MB)")
        _unpack_python()
        _install_wheels(needed)
        ready.write_text("\n".join(needed))
    for name in ("package", "start", "home"):
        (ARM / name).mkdir(exist_ok=True)
    link = ARM / "package" / "kvarn"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT)
    (ARM / "start" / "sitecustomize.py").write_text(
        "from lab.arm.ask import install\n\ninstall()\n"
    )
    for cpu in CPUS:
        (ARM / cpu).write_text(_launcher(cpu))
        (ARM / cpu).chmod(0o755)


def environment(python: str) -> dict[str, str]:
    """Of a process: its models and packs, and in the emulator its kernels, stay in the folder."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KVARN_")}
    own = {"KVARN_HOME": str(ARM / "home"), OUTSIDE: sys.executable}
    return plain | own | ({"KVARN_CACHE": str(ARM / "cache")} if python != sys.executable else {})


def _unpack_python() -> None:
    apt = ARM / "apt"
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
        _call(f"unpacking {package.name}", "dpkg-deb", "-x", str(package), str(ARM / "root"))


def _install_wheels(needed: list[str]) -> None:
    python = (ARM / "root/usr/bin/python3").readlink().name  # "python3.11"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    frozen = _call("listing packages", *pip, "freeze", "--exclude-editable")
    (names := ARM / "names.txt").write_text(frozen)
    platforms = [f"--platform=manylinux_{version}_aarch64" for version in _GLIBC]
    _call(
        "installing packages for aarch64",
        *(
            *pip,
            "install",
            "--upgrade",
            "--target",
            str(ARM / "site"),
            "--only-binary=:all:",
            *platforms,
        ),
        *("--platform=manylinux2014_aarch64", "--implementation=cp"),
        *(f"--python-version={python.removeprefix('python')}", "--constraint", str(names)),
        *needed,
    )


def _launcher(cpu: str) -> str:
    """A shell script that is the ARM Python on a CPU, also for processes which that starts."""
    root, (emulated, features) = ARM / "root", CPUS[cpu]
    paths = ":".join(str(path) for path in (ARM / "start", ARM / "package", ROOT, ARM / "site"))
    libraries = f"{root}/lib/aarch64-linux-gnu:{root}/usr/lib/aarch64-linux-gnu"
    return (
        f"#!/bin/sh\nexport PYTHONHOME='{root}/usr' PYTHONPATH='{paths}' "
        f"NUMBA_CPU_NAME={cpu} NUMBA_CPU_FEATURES={features}\n"
        f"exec {QEMU} -cpu {emulated} '{root}/lib/ld-linux-aarch64.so.1' --argv0 \"$0\" "
        f"--library-path '{libraries}' '{root}/usr/bin/python3' \"$@\"\n"
    )


def _call(doing: str, *command: str) -> str:
    """A command's output. Raises `KvarnError` where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KvarnError(f"arm: {doing}: {one_line(done.stderr.strip()[-300:])}")
    return done.stdout
