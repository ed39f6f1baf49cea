"""The interpreter of a bundle: its library, the standard library, a program, and the shared
libraries that extension modules link to.

A bundle leaves glibc, libstdc++, libgcc_s and zlib to the system, as wheels do (PEP 600): another
copy of those could clash with the program's own.
"""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

from ..build import BuildError, compile_c, variable

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = variable("INSTSONAME")
"""File name of libpython."""

# Development, windows on the screen, databases: nothing that kvarn or its packages import.
_LEFT_OUT = re.compile(
    r"__pycache__|test|tests|idlelib|lib2to3|tkinter|turtle\w*(\.py)?|ensurepip|pydoc_data|venv|"
    r"sqlite3|curses|dbm|msilib|config-.*|site-packages|dist-packages"
)
_MODULES_LEFT_OUT = re.compile(
    r"(_tkinter|_curses\w*|readline|_g?dbm|nis|_sqlite3|_ssl|_hashlib|_uuid|_crypt|spwd|"
    r"ossaudiodev|_?xx\w*|_test\w*|_ctypes_test)\."
)
_SYSTEM_LIBRARIES = re.compile(
    r"(linux-vdso|linux-gate|ld-linux.*|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|"
    r"libstdc\+\+|libgcc_s|libz|libpython.*)\.so.*|/.*"
)
_LDD_LINE = re.compile(r"\t(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?")
_GNU_OPENMP = "libgomp.so.1"
_MAIN = "#include <Python.h>\nint main(int n, char **words) { return Py_BytesMain(n, words); }\n"


def standard_library(out: Path) -> Path:
    """The folder of the standard library in a bundle."""
    return out / "lib" / VERSION


def site_packages(out: Path) -> Path:
    """The folder of the packages in a bundle."""
    return standard_library(out) / "site-packages"


def copy_standard_library(out: Path) -> None:
    """Copy the standard library, libpython and Python's licence."""
    source = Path(sysconfig.get_paths()["stdlib"])
    shutil.copytree(source, standard_library(out), ignore=_left_out)
    shutil.copy(Path(variable("LIBDIR"), LIBRARY), out / "lib")
    strip(out / "lib" / LIBRARY)
    places = [source / "LICENSE.txt", *Path("/usr/share/doc").glob(f"*{VERSION}*/copyright")]
    licence = next((path for path in places if path.is_file()), None)
    if licence is None:
        raise BuildError(f"bundling libkvarn: Python's licence is missing: expected {places[0]}")
    (out / "share" / "licenses" / "python").mkdir(parents=True)
    shutil.copy(licence, out / "share" / "licenses" / "python" / "LICENSE.txt")


def make_program(out: Path, link: Sequence[str]) -> None:
    """Compile DIR/bin/python3.11, which finds the rest of the bundle by its own path."""
    (out / "bin").mkdir()
    source = out / "bin" / "main.c"
    source.write_text(_MAIN)
    compile_c(str(source), "-o", str(out / "bin" / VERSION), *link)
    source.unlink()


def compile_modules(out: Path) -> None:
    """Compile all modules to bytecode, which stays valid wherever the files are copied."""
    folder = standard_library(out)
    compiled = compileall.compile_dir(
        folder,
        quiet=2,
        stripdir=str(out),
        workers=0,
        maxlevels=30,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        raise BuildError(f"bundling libkvarn: modules below {folder} do not compile")


def strip(library: Path) -> None:
    """Remove the symbols that only a debugger reads."""
    try:
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"bundling libkvarn: strip (of the package binutils): {error}") from error


def _left_out(folder: str, names: list[str]) -> list[str]:
    matches = _MODULES_LEFT_OUT.match if Path(folder).name == "lib-dynload" else _LEFT_OUT.fullmatch
    return [name for name in names if matches(name)]


def copy_libraries(out: Path, bundled: Path) -> list[str]:
    """Copy the shared libraries that modules link to, with their licences, to DIR/lib, and GNU's
    OpenMP to `bundled`; returns the names of those in DIR/lib.

    GNU's OpenMP is loaded by its path (`jit/threads`), after its settings have been made.
    """
    libraries: dict[str, Path] = {}
    for module in (standard_library(out) / "lib-dynload").glob("*.so"):
        libraries |= _linked(module)
    for name, path in libraries.items():
        _copy_library(path, out / "lib" / name, out)
    _check_links(out, set(libraries))
    bundled.mkdir()
    openmp = Path(_output_of(variable("CC").split()[0], f"-print-file-name={_GNU_OPENMP}").strip())
    if not openmp.is_file():
        raise BuildError(f"bundling libkvarn: {_GNU_OPENMP} is missing: install libgomp1")
    _copy_library(openmp, bundled / _GNU_OPENMP, out)
    return sorted(libraries)


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _linked(module: Path) -> dict[str, Path]:
    """Name and path of each library that a module needs, but for the system's."""
    lines = map(_LDD_LINE.fullmatch, _output_of("ldd", str(module)).splitlines())
    return {
        line[1]: Path(line[2])
        for line in lines
        if line is not None and not _SYSTEM_LIBRARIES.fullmatch(line[1])
    }


def _check_links(out: Path, copied: set[str]) -> None:
    """`BuildError` unless packages find what they link to in DIR/lib, or beside themselves."""
    for module in site_packages(out).rglob("*.so*"):
        for name, path in _linked(module).items():
            if name not in copied | {LIBRARY, _GNU_OPENMP} and not path.is_relative_to(out):
                raise BuildError(
                    f"bundling libkvarn: {module.relative_to(out)} needs {name}, which is no part "
                    "of the bundle"
                )


def _copy_library(path: Path, to: Path, out: Path) -> None:
    shutil.copy(path.resolve(), to)
    strip(to)
    licence = _system_licence(path)
    if licence is None:
        raise BuildError(f"bundling libkvarn: the licence of {path} is missing on this system")
    folder = out / "share" / "licenses" / to.name
    folder.mkdir(parents=True)
    shutil.copy(licence, folder / licence.name)


def _system_licence(path: Path) -> Path | None:
    """The licence in the system's package of a library: as Debian keeps it, then as others do."""
    candidates = {path, path.resolve(), Path("/usr/lib", *path.parts[2:])}
    candidates |= {Path(str(candidate).removeprefix("/usr")) for candidate in candidates}
    for candidate in candidates if shutil.which("dpkg-query") else ():
        owners = _output_of("dpkg-query", "--search", str(candidate))
        for package in re.findall(r"^([^:\s]+)", owners, re.MULTILINE):
            if (text := Path("/usr/share/doc", package, "copyright")).is_file():
                return text
    stem = path.name.split(".so")[0]
    return next(Path("/usr/share/licenses").glob(f"{stem}*/*"), None)
