"""The folders of compiled kernels on disk. Imports no Numba.

    $KVARN_CACHE, then $XDG_CACHE_HOME/kvarn or else ~/.cache/kvarn        the roots
      └─ kernels/
           ├─ cpu.target       this CPU in LLVM's words (`host`)
           └─ <key>/           variant, and hash of: versions, CPU
                ├─ <kernel>-<hash>.kernel      a specialisation with its types (`cached`)
                ├─ <kernel>-<hash>.code        its machine code alone (`machine_code`)
                ├─ sources-<hash>.digests      digests of the kernels' sources (`sources`)
                ├─ rehearsed-<hash>.names      kernels that a feature of a model uses
                ├─ <name>.<hex digits>.tmp     a file that a process is writing
                └─ <name>.lock                 locked (flock) while a process compiles the kernel

The hashes identify the inputs of each file, so that the kernels of several checkouts stand side by
side. When the files grow beyond `MOST_BYTES`, those that were read longest ago are removed.

kvarn runs machine code as it reads it, so folders and files are opened by the rule of
`system.trust`. kvarn tries the roots in this order until it can write to one. It reads the roots
before that one, too (root may have compiled kernels for all users), and kernels that came with the
installation. A user without a home folder and without KVARN_CACHE has no root: every process
compiles its kernels.
"""

import hashlib
import os
import platform
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...system.files import remove_folder
from ...system.text import one_line
from ...system.trust import Folder, Untrusted, open_folder, open_installed
from .. import bundled, roots
from ..variant import CHOSEN, CPU, LISTED, NEEDS, VARIANT, host_features

PACKAGE = Path(__file__).resolve().parents[2]
FLOORS = (PACKAGE / "jit", PACKAGE / "ops")
"""The rooms that hold the sources of kernels."""
KEEP = 8  # folders of other keys: variants, CPUs and versions that are used side by side
MOST_BYTES = 1 << 30  # of a key's files; all methods of two models take a fifth
KERNELS = (".kernel", ".code")
"""Suffixes of compiled kernels."""
CHOOSE_FOLDER = "set KVARN_CACHE to a folder with free space that only you can write to"

_KEY = re.compile(rf"({'|'.join(NEEDS)})-[0-9a-f]{{24}}")
_FILE = re.compile(
    r"(.+-[0-9a-f]{40}\.(kernel|code|names|digests|means)|probe|"
    r"kvarn_launch\.code|keys-[0-9a-f]{16}\.means)"  # names of earlier versions
    r"(\.[0-9a-f]{16}\.tmp|\.lock)?"
)


class CacheProblem(NamedTuple):
    """Why kernels cannot be kept in a folder, and what to do."""

    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}"

    @classmethod
    def of(cls, error: Untrusted | OSError, folder: Path) -> "CacheProblem":
        if isinstance(error, Untrusted):
            return cls(error.reason, f"{error.fix}, or {CHOOSE_FOLDER}")
        path = error.filename if Path(str(error.filename)).is_absolute() else folder
        return cls(one_line(f"{path}: {error.strerror or error}"), CHOOSE_FOLDER)


NO_HOME = CacheProblem("this user has no home folder", CHOOSE_FOLDER)


def read_sources(folders: Sequence[Path] = FLOORS) -> dict[str, bytes]:
    """Every Python file below `folders`, by its path from their parent ("ops/types.py")."""
    contents = dict[str, bytes]()
    for folder in folders:
        first = len(f"{folder.parent}/")
        walk = os.walk(folder)  # `Path.rglob` and sorting paths take ten times as long
        paths = [f"{at}/{name}" for at, _, names in walk for name in names if name.endswith(".py")]
        for path in sorted(paths):
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  each start reads 200 files
                contents[path[first:]] = file.read()
    return contents


def hash_of(contents: Mapping[str, bytes]) -> str:
    """Hash of files, names and contents."""
    digest = hashlib.blake2b(digest_size=20)
    for path, content in contents.items():
        digest.update(f"{path}\0".encode() + content + b"\0")
    return digest.hexdigest()


def sources_hash() -> str:
    """Hash of all sources of kernels as they are now."""
    return hash_of(read_sources())


# Read before this process imports them; takes 2 ms.
SOURCES = sources_hash()


@lru_cache(maxsize=1)
def key() -> str:
    """Name of the folder of kernels for these libraries and this CPU."""
    parts = (
        roots.version("numba", "_version.py"),
        roots.version("numpy", "version.py"),
        roots.version("llvmlite", "_version.py"),
        sys.implementation.cache_tag,
        platform.machine(),
        VARIANT,
        CPU,
        LISTED,
    )
    return f"{VARIANT}-{hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"


def open_kernels(root: Path) -> Folder:
    """The folder of this process's kernels below `root`; makes it if it is missing.

    Raises `Untrusted` where others can write to it, and OSError.
    """
    try:
        root = root.expanduser()
    except RuntimeError as error:
        raise OSError(None, str(error), str(root.absolute())) from None
    return open_folder(root / "kernels" / key(), make=True)


def bundled_key() -> str:
    """Name of the folder of kernels that came with the installation, for this CPU: machine code
    depends on the CPU and on its sources alone, and the names of files have these."""
    parts = platform.machine(), VARIANT, CPU, LISTED
    return f"{VARIANT}-{hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"


def open_bundled() -> Folder | None:
    """The folder of this process's kernels that came with the installation, if there is one.

    Raises `Untrusted` where others can write to it who cannot write to the package itself.
    """
    try:
        return open_installed(bundled.FOLDER.parent, bundled.FOLDER / "kernels" / bundled_key())
    except OSError:
        return None


def why_not_bundled() -> str:
    """Why this process cannot use the kernels that came with the installation; "" if it can, or if
    there are none, or if the user chose another CPU or variant."""
    if bundled.is_damaged():
        return f"{bundled.FOLDER / 'targets.json'} is damaged: install kvarn again"
    targets = bundled.targets()
    if not targets or CHOSEN & os.environ.keys():
        return ""
    if (CPU, LISTED) in targets:
        return f"{bundled.FOLDER} has none for {CPU}: install kvarn again"
    lacking = ", ".join(sorted(targets[-1].needs - host_features()))
    return f"this CPU has no {lacking}" if lacking else ""


def is_kernel(name: str) -> bool:
    """Whether kvarn gives such a name to a file, finished or unfinished."""
    return _FILE.fullmatch(name) is not None


def prune(target: Folder, keep: int = KEEP, most_bytes: int = MOST_BYTES) -> None:
    """Remove this key's files that were read longest ago, until the rest has `most_bytes`, and
    folders of other keys, except the `keep` newest: kvarn's files, then empty folders.
    """
    try:
        target.shrink(most_bytes, is_kernel)
        others = [
            (status.st_mtime, folder)
            for folder in target.path.parent.iterdir()
            if _KEY.fullmatch(folder.name) and folder.name != target.path.name
            if stat.S_ISDIR((status := folder.lstat()).st_mode) and status.st_uid == os.geteuid()
        ]
        for _, folder in sorted(others, reverse=True)[keep:]:
            remove_folder(folder, is_kernel)
    except OSError:
        return  # another process removes them
