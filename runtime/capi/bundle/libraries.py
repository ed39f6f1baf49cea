"""Shared libraries that a bundle's extension modules link to.

Left to the system are glibc, libstdc++, libgcc_s and zlib, as by wheels (PEP 600): another copy of
those could clash with the program's own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from ..build import BuildError, variable
from .packages import folder
from .python import LIBRARY, standard_library, strip

_SYSTEM = re.compile(
    r"(linux-vdso|linux-gate|ld-linux.*|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|"
    r"libstdc\+\+|libgcc_s|libz|libpython.*)\.so.*|/.*"
)
_LINE = re.compile(r"\t(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?")
GNU = "libgomp.so.1"


def copy_libraries(out: Path, bundled: Path) -> list[str]:
    """Copy them, with their licences, to DIR/lib and `bundled`; the names of those in DIR/lib.

    GNU's OpenMP is loaded by its path (`jit/threads`), after its settings have been made.
    """
    found: dict[str, Path] = {}
    for module in (standard_library(out) / "lib-dynload").glob("*.so"):
        found |= _linked(module)
    for name, path in found.items():
        _copy(path, out / "lib" / name, out)
    _check(out, set(found))
    bundled.mkdir()
    compiler = variable("CC").split()[0]
    told = subprocess.run(
        [compiler, f"-print-file-name={GNU}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not Path(told).is_file():
        raise BuildError(f"bundling libkvarn: {GNU} is missing: install libgomp1")
    _copy(Path(told), bundled / GNU, out)
    return sorted(found)


def _linked(module: Path) -> dict[str, Path]:
    """Name and path of each library that a module needs, the system's left out."""
    done = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if (known := _LINE.fullmatch(line)) and not _SYSTEM.fullmatch(known[1]):
            found[known[1]] = Path(known[2])
    return found


def _check(out: Path, having: set[str]) -> None:
    """All packages find what they link to: in DIR/lib, or beside themselves."""
    for module in folder(out).rglob("*.so*"):
        for name, path in _linked(module).items():
            if name not in having | {LIBRARY, GNU} and not path.is_relative_to(out):
                raise BuildError(
                    f"bundling libkvarn: {module.relative_to(out)} needs {name}, which is no part "
                    "of the bundle"
                )


def _copy(path: Path, to: Path, out: Path) -> None:
    real = path.resolve()
    shutil.copy(real, to)
    strip(to)
    licence = _licence(path)
    if licence is None:
        raise BuildError(f"bundling libkvarn: the licence of {path} is missing on this system")
    place = out / "share" / "licenses" / to.name
    place.mkdir(parents=True)
    shutil.copy(licence, place / licence.name)


def _licence(path: Path) -> Path | None:
    """What the system's package of a library says: Debian's, then others' places."""
    for named in {path, path.resolve(), *(Path("/usr/lib", *p.parts[2:]) for p in (path,))}:
        for form in (named, Path(str(named).removeprefix("/usr"))):
            words = ["dpkg-query", "--search", str(form)]
            if shutil.which(words[0]) is None:
                break
            told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            for package in re.findall(r"^([^:\s]+)", told, re.MULTILINE):
                if (text := Path("/usr/share/doc", package, "copyright")).is_file():
                    return text
    stem = path.name.split(".so")[0]
    for place in Path("/usr/share/licenses").glob(f"{stem}*/*"):
        return place
    return None
