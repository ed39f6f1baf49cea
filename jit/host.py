"""This CPU as LLVM describes it, kept until the next boot. Imports no Numba.

Importing LLVM only to ask it takes a twentieth of a start. So its answer is kept beside the
kernels, in the first root (`roots`) that kvarn can use:

    kernels/cpu.target      three lines: a hash of what the answer depends on, name, features

A file of another boot, another version of llvmlite or with any other line counts as absent.
"""

from __future__ import annotations

import hashlib
import platform
import re
from contextlib import suppress
from pathlib import Path

from ..system.trust import Untrusted, open_folder
from . import machine, roots

FILE = "cpu.target"
_NAME = re.compile(r"[\w.-]+")
_FEATURES = re.compile(r"([+-][\w.-]+(,[+-][\w.-]+)*)?")

# Features that kernels look for, and that LLVM does not see on ARM.
_UNSEEN = frozenset({"bf16", "dotprod", "fullfp16", "i8mm", "neon"})


class _State:
    """New: what LLVM said in this process, to be kept."""

    new: tuple[str, str] | None = None


def described() -> tuple[str, str]:
    """LLVM's name of this CPU (`znver3`) and its features (`+avx,-sse4a`)."""
    for root in roots.candidates():
        # Without a home folder, expanding ~ raises RuntimeError.
        with (
            suppress(OSError, RuntimeError, Untrusted),
            open_folder(root.expanduser() / "kernels") as folder,
        ):
            if (kept := _parse(folder.read(FILE))) is not None:
                return kept
    from llvmlite import binding as llvm

    _State.new = llvm.get_host_cpu_name(), flatten(flags())
    return _State.new


def flags() -> dict[str, bool]:
    """The features that LLVM knows of this CPU, and whether it has them."""
    from llvmlite import binding as llvm

    seen: dict[str, bool] = dict(llvm.get_host_cpu_features())
    if platform.machine() in ("aarch64", "arm64"):
        seen.update(dict.fromkeys(machine.features() & _UNSEEN, True))
    return seen


def flatten(flags: dict[str, bool]) -> str:
    """Features as LLVM reads them: `+avx,-sse4a`."""
    return ",".join(f"{'+' if has else '-'}{name}" for name, has in sorted(flags.items()))


def keep(kernels: Path) -> None:
    """Keep what LLVM said in this process, if it was asked, in the folder above all kernels.

    Where that fails, the next process asks again; a kernel that cannot be kept is told.
    """
    if _State.new is not None and machine.boot():
        with suppress(OSError, Untrusted), open_folder(kernels) as folder:
            folder.write(FILE, "\n".join((_depends_on(), *_State.new, "")).encode())
        _State.new = None


def _parse(data: bytes) -> tuple[str, str] | None:
    """The name and the features of a file, if they are of this CPU."""
    depends_on, name, features, *rest = [*data.decode("ascii", "replace").split("\n"), "", ""]
    is_whole = _NAME.fullmatch(name) and _FEATURES.fullmatch(features) and rest == ["", "", ""]
    return (name, features) if is_whole and machine.boot() and depends_on == _depends_on() else None


def _depends_on() -> str:
    listed = " ".join(sorted(machine.features()))
    llvmlite = roots.version("llvmlite", "_version.py")
    parts = 1, machine.boot(), platform.machine(), llvmlite, listed
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()
