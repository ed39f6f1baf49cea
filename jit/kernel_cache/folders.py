"""Where compiled kernels are kept between processes.

    $KVARN_CACHE, then $XDG_CACHE_HOME/kvarn or else ~/.cache/kvarn
      └─ kernels/
           └─ <key>/           hash of the sources of jit/ and ops/, versions, variant, CPU
                ├─ <kernel>-<hash>.kernel      one compiled specialisation (cache.py draws it)
                ├─ <kernel>-<hash>.code        machine code of one step (code.py)
                └─ <name>.<hex digits>.tmp     what a process is writing

A kernel is machine code that is run as it is read, so folders and files are opened by the rule of
`system.trust`. The roots are tried in their order until one can be written to; those before it are
read as well (kernels built ahead by root, read by everyone). For a user without a home folder, who
chose no other, kernels are compiled anew in every process: a folder for one process alone would be
of no use, as nothing is read twice. Imports no Numba.
"""

import hashlib
import os
import platform
import re
import stat
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import llvmlite

from ...system.files import remove_folder
from ...system.text import one_line
from ...system.trust import Folder, Untrusted, open_folder
from ..variant import CPU, LISTED, NEEDS, VARIANT

PACKAGE = Path(__file__).resolve().parents[2]
FLOORS = (PACKAGE / "jit", PACKAGE / "ops")
"""The sources that machine code is made of."""
KEEP = 8  # folders of other keys that stay: other variants, CPUs and versions in use side by side
CHOOSE = "set KVARN_CACHE to a folder with room that you alone can write to"

_KEY = re.compile(rf"({'|'.join(NEEDS)})-[0-9a-f]{{24}}")
_FILE = re.compile(
    r"(.+-[0-9a-f]{40}\.(kernel|code)|kvarn_launch\.code|keys-[0-9a-f]{16}\.means|probe)"
    r"(\.[0-9a-f]{16}\.tmp)?"
)


class Against(NamedTuple):
    """What stands against keeping kernels in a folder, and what mends it."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}; {self.mend}"

    @classmethod
    def of(cls, error: Untrusted | OSError, where: Path) -> "Against":
        if isinstance(error, Untrusted):
            return cls(error.what, f"{error.mend}, or {CHOOSE}")
        place = error.filename if Path(str(error.filename)).is_absolute() else where
        return cls(one_line(f"{place}: {error.strerror or error}"), CHOOSE)


def sources_hash(folders: Sequence[Path] = FLOORS) -> str:
    """Hash of every Python file below `folders`, names and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder.parent)}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


# As they were when this process began to import them: 2 ms.
SOURCES = sources_hash()


def _numba_version() -> str:
    """Numba's file that tells its version; neither it nor importlib.metadata is worth importing."""
    found = find_spec("numba")
    assert found and found.origin
    return Path(found.origin).with_name("_version.py").read_text()


@lru_cache(maxsize=1)
def key() -> str:
    """Name of the folder of kernels that fit this program, these libraries and this CPU."""
    parts = (
        SOURCES,
        _numba_version(),
        llvmlite.__version__,
        sys.implementation.cache_tag,
        platform.machine(),
        VARIANT,
        CPU,
        LISTED,
    )
    return f"{VARIANT}-{hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"


def candidates() -> list[Path]:
    """The cache's possible roots, best first; none for a user without a home folder."""
    chosen = os.environ.get("KVARN_CACHE")
    roots = [Path(chosen)] if chosen else []
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return [*roots, xdg / "kvarn"]
    try:
        return [*roots, Path.home() / ".cache" / "kvarn"]
    except RuntimeError:
        return roots


def open_kernels(root: Path) -> Folder:
    """The folder for this process's kernels below `root`, made where it is missing.

    Raises `Untrusted` where others can write to it, and OSError.
    """
    try:
        root = root.expanduser()
    except RuntimeError as error:
        raise OSError(None, str(error), str(root.absolute())) from None
    return open_folder(root / "kernels" / key(), make=True)


def is_kernel(name: str) -> bool:
    """Whether a file is one that kvarn made: finished, or what a killed process left."""
    return _FILE.fullmatch(name) is not None


def prune(kernels: Path, keep: int = KEEP) -> None:
    """Remove kvarn's files from the folders of older keys, and these folders where they are empty,
    all but the `keep` that were last written to.

    kernels: a folder that only this user and root can write to, without links on the way.
    """
    current = key()
    try:
        others = [
            (found.st_mtime, folder)
            for folder in kernels.iterdir()
            if _KEY.fullmatch(folder.name) and folder.name != current
            if stat.S_ISDIR((found := folder.lstat()).st_mode) and found.st_uid == os.geteuid()
        ]
        for _, folder in sorted(others, reverse=True)[keep:]:
            remove_folder(folder, is_kernel)
    except OSError:
        return  # another process prunes at this moment
