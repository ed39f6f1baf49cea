"""Where compiled kernels are kept between processes.

    $KVARN_CACHE, else $XDG_CACHE_HOME/kvarn, else ~/.cache/kvarn, else <temporary>/kvarn-<user>
      └─ kernels/
           └─ <key>/           hash of the sources of jit/ and ops/, versions, variant, CPU
                ├─ <kernel>-<hash>.kernel      one compiled specialisation (cache.py draws it)
                └─ <kernel>-<hash>.code        machine code of one step (code.py)

A kernel is machine code that is run as it is read, so only folders that nobody else can write to
are trusted.  All folders that exist are read from; the first that can be written to is written to
(kernels built ahead by root, read by everyone).  Imports no Numba.
"""

import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import llvmlite

from ..variant import CPU, LISTED, VARIANT

PACKAGE = Path(__file__).resolve().parents[2]
FLOORS = (PACKAGE / "jit", PACKAGE / "ops")
"""The sources that machine code is made of."""
KEEP = 8  # folders of other keys that stay: other variants, CPUs and versions in use side by side


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
    """The cache's possible roots, best first."""
    chosen = os.environ.get("KVARN_CACHE")
    if chosen:
        return [Path(chosen).expanduser().absolute(), _temporary()]
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():
        return [Path(xdg) / "kvarn", _temporary()]
    try:
        return [Path.home() / ".cache" / "kvarn", _temporary()]
    except RuntimeError:  # a user without a home folder
        return [_temporary()]


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"kvarn-{_user()}"


def _user() -> str:
    return str(os.getuid()) if sys.platform != "win32" else os.environ.get("USERNAME", "user")


def trusted(folder: Path) -> bool:
    """Whether nobody but this user (or root) can write to the folder, which exists."""
    if sys.platform == "win32":
        return folder.is_dir()
    try:
        found = folder.stat()
    except OSError:
        return False
    mine = found.st_uid in (0, os.getuid())
    return stat.S_ISDIR(found.st_mode) and mine and not found.st_mode & stat.S_IWOTH


def readable() -> list[Path]:
    """The folders that hold kernels for this process."""
    return [folder for root in candidates() if trusted(folder := root / "kernels" / key())]


def writable(root: Path) -> str | None:
    """Make the folder for this process's kernels below `root`; what stands against it, or None."""
    folder = root / "kernels" / key()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not trusted(folder):
            return f"{folder} belongs to or can be written by others"
        # A full disk still makes empty files: write something.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(65536))
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def prune(kernels: Path, keep: int = KEEP) -> None:
    """Remove the folders of older keys, all but the `keep` that were last written to."""
    current = key()
    try:
        others = [f for f in kernels.iterdir() if f.is_dir() and f.name != current]
        others.sort(key=lambda f: f.stat().st_mtime, reverse=True)
    except OSError:
        return  # another process prunes at this moment
    for folder in others[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
