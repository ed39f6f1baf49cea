"""The interpreter of a bundle: its library, the standard library, a program."""

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
_MAIN = "#include <Python.h>\nint main(int n, char **words) { return Py_BytesMain(n, words); }\n"


def standard_library(out: Path) -> Path:
    """Its folder in a bundle."""
    return out / "lib" / VERSION


def copy_standard_library(out: Path) -> None:
    """Copy it, libpython and Python's licence."""
    source = Path(sysconfig.get_paths()["stdlib"])
    shutil.copytree(source, standard_library(out), ignore=_left_out)
    shutil.copy(Path(variable("LIBDIR"), LIBRARY), out / "lib")
    strip(out / "lib" / LIBRARY)
    places = [source / "LICENSE.txt", *Path("/usr/share/doc").glob(f"*{VERSION}*/copyright")]
    found = next((one for one in places if one.is_file()), None)
    if found is None:
        raise BuildError(f"bundling libkvarn: Python's licence is missing: expected {places[0]}")
    (out / "share" / "licenses" / "python").mkdir(parents=True)
    shutil.copy(found, out / "share" / "licenses" / "python" / "LICENSE.txt")


def make_program(out: Path, link: Sequence[str]) -> None:
    """Compile DIR/bin/python3.11, which finds all by its own place."""
    (out / "bin").mkdir()
    source = out / "bin" / "main.c"
    source.write_text(_MAIN)
    compile_c(str(source), "-o", str(out / "bin" / VERSION), *link)
    source.unlink()


def compile_modules(out: Path) -> None:
    """Compile all modules to bytecode, which stays valid wherever the files are copied."""
    folder = standard_library(out)
    done = compileall.compile_dir(
        folder,
        quiet=2,
        stripdir=str(out),
        workers=0,
        maxlevels=30,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        raise BuildError(f"bundling libkvarn: modules below {folder} do not compile")


def strip(library: Path) -> None:
    """Remove the symbols that only a debugger reads."""
    try:
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"bundling libkvarn: strip (of the package binutils): {error}") from error


def _left_out(folder: str, names: list[str]) -> list[str]:
    grammar = _MODULES_LEFT_OUT.match if Path(folder).name == "lib-dynload" else _LEFT_OUT.fullmatch
    return [name for name in names if grammar(name)]
