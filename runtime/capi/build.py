"""Builds libkvarn with a C compiler.

DIR/include/kvarn.h
DIR/lib/libkvarn.so            links to this Python's library; knows where its packages are
DIR/lib/pkgconfig/kvarn.pc     finds the folder by its own place, so that DIR can be moved
DIR/share/examples/
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...system.errors import KvarnError
from ...system.extras import how_to_install
from ...system.text import one_line

HERE = Path(__file__).resolve().parent
DEFAULT = Path("build/libkvarn")
"""Where the library is built unless a folder is named."""
_MODULE = "_libkvarn"

# What Python calls, and the types of the functions that C calls.
_TYPES = """
typedef int (*kvarn_on_text)(const char *utf8, size_t n, void *user);
typedef int (*kvarn_on_progress)(long done, long total, void *user);
void set_error(const char *text);
int is_ending(void);
uint64_t handle_new(int kind);
void handle_free(uint64_t handle);
int64_t *stop_of(uint64_t context);
long bad_handle(uint64_t handle, int kind);
int call_text(kvarn_on_text f, const char *utf8, size_t n, void *user);
int call_progress(kvarn_on_progress f, long done, long total, void *user);
void call_log(const char *line);
void arm(void);
"""
_INIT = f"""
from {_MODULE} import ffi, lib
from kvarn.runtime.capi.entry import Entry
Entry(ffi, lib).bind(%r)
"""


class BuildError(KvarnError):
    """libkvarn cannot be built here."""


@dataclass(frozen=True)
class PythonPaths:
    """Where a library finds Python.

    home, program, packages   compiled into the library; empty in a bundle, which finds them itself
    link                      options of the linker
    """

    home: str
    program: str
    packages: Sequence[str]
    link: Sequence[str]


def build(out: Path, python: PythonPaths | None = None) -> Path:
    """Build into the folder `out`; returns the path of the library.

    python: where it finds Python; None: the running one. Raises `BuildError` without a shared
    libpython, cffi, a C compiler or Linux.
    """
    check_python()
    library = out / "lib" / "libkvarn.so"
    for folder in ("include", "lib/pkgconfig"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "kvarn.h", out / "include")
    shutil.copytree(HERE / "examples", out / "share" / "examples", dirs_exist_ok=True)
    (out / "lib" / "pkgconfig" / "kvarn.pc").write_text(_pkg_config())
    with tempfile.TemporaryDirectory() as folder:
        made = _compiled(Path(folder), python or _installed())
        Path(shutil.copy(made, library.with_suffix(".new"))).replace(library)
    return library


def built_library(out: Path | None) -> Path:
    """The absolute folder of a library that was built: `out`, or else the default one here, or in
    kvarn's checkout. `BuildError` where there is none."""
    places = [DEFAULT, HERE.parents[1] / DEFAULT] if out is None else [out]
    for place in places:
        if (place / "lib" / "libkvarn.so").is_file():
            return place.resolve()
    raise BuildError(
        f"there is no libkvarn in {' or '.join(str(place.absolute()) for place in places)}: name "
        "the folder it was built in with --out DIR, or build it first"
    )


def flags_to_compile(out: Path) -> str:
    """Flags for the compiler of a program."""
    return shlex.join([f"-I{out / 'include'}"])


def flags_to_link(out: Path) -> str:
    """Flags for the linker of a program."""
    lib = out / "lib"
    return shlex.join([f"-L{lib}", "-lkvarn", f"-Wl,-rpath,{lib}"])


def _installed() -> PythonPaths:
    lib = variable("LIBDIR")
    return PythonPaths(
        home=sys.base_prefix,
        program=sys.executable,
        packages=_package_folders(),
        link=[f"-L{lib}", f"-lpython{variable('LDVERSION')}", f"-Wl,-rpath,{lib}"],
    )


def check_python() -> None:
    """`BuildError` where this Python cannot be embedded."""
    if sys.platform != "linux":
        raise BuildError(f"building libkvarn: it can be built on Linux, and this is {sys.platform}")
    lib = Path(variable("LIBDIR")) / variable("LDLIBRARY")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not lib.is_file():
        raise BuildError(
            f"building libkvarn: {sys.executable} has no shared library, {lib}: take a Python that "
            "was configured with --enable-shared (pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared), "
            "or install python3-dev"
        )
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise BuildError("building libkvarn: Python.h is missing: install python3-dev")


def variable(name: str) -> str:
    """A setting that this Python was built with: `sysconfig.get_config_var`."""
    return str(sysconfig.get_config_var(name))


def _compiled(folder: Path, python: PythonPaths) -> Path:
    """Compiles the library in `folder`, which also gets its sources."""
    try:
        from cffi import FFI
    except ImportError as error:
        raise BuildError(f"building libkvarn: cffi is missing: {how_to_install('lib')}") from error
    functions = (HERE / "python_functions.h").read_text()
    declared = re.findall(r"^static (long (py_\w+)\([^;]*\);)", functions, re.MULTILINE)
    ffi = FFI()
    ffi.embedding_api("")
    ffi.cdef(_TYPES)
    ffi.cdef('extern "Python" {\n' + "\n".join(text for text, _ in declared) + "\n}")
    ffi.set_source(_MODULE, '#include "library.c"')
    ffi.embedding_init_code(_INIT % [name for _, name in declared])
    with redirect_stdout(io.StringIO()):  # cffi prints messages
        ffi.emit_c_code(str(folder / f"{_MODULE}.c"))
    (folder / "exported").write_text("{ global: kvarn_*; local: *; };\n")
    library = folder / "libkvarn.so"
    compile_c(
        "-fPIC", "-shared", "-pthread",
        "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-field-initializers",
        *(f"-D{name}={value}" for name, value in _built_in(python).items()), f"-I{HERE}",
        str(folder / f"{_MODULE}.c"), "-o", str(library), *python.link, "-ldl",
        f"-Wl,--version-script={folder / 'exported'}", "-Wl,-soname,libkvarn.so",
    )  # fmt: skip
    return library


def compile_c(*words: str) -> None:
    """Run the C compiler; `BuildError` where it fails."""
    compiler = shlex.split(os.environ.get("CC") or variable("CC").split()[0])
    include = sysconfig.get_paths()["include"]
    command = [*compiler, "-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", f"-I{include}", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"building libkvarn: the C compiler {compiler[0]} cannot be started "
            f"({error.strerror}): install one, or name it in CC"
        ) from error
    if done.returncode:
        errors = one_line(done.stderr.strip().replace("\n", "; "), 1000)
        raise BuildError(f"building libkvarn: {compiler[0]} failed: {errors}")


def _built_in(python: PythonPaths) -> dict[str, str]:
    """Macros that are compiled into the library: C strings."""
    stdlib = Path(sysconfig.get_paths()["stdlib"]).relative_to(sys.base_prefix)
    macros = {
        "KVARN_VERSION": [__version__],
        "PYTHON_VERSION": [f"{sys.version_info[0]}.{sys.version_info[1]}"],
        "PYTHON_HOME": [python.home],
        "PYTHON_LIBRARY": [str(stdlib)],
        "PYTHON_PROGRAM": [python.program],
        "PYTHON_PATHS": python.packages,
    }
    return {name: _c_string(values) for name, values in macros.items()}


def _c_string(lines: Sequence[str]) -> str:
    for line in lines:
        if len(line.splitlines()) > 1:
            raise BuildError(f"building libkvarn: a path has a newline: {json.dumps(line)}")
    escaped = ("".join(c if c not in '"\\?' else f"\\{c}" for c in line) for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def _package_folders() -> list[str]:
    """Folders of kvarn and the packages it imports: $PYTHONPATH, then this Python's folders."""
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(":")
    folders = [
        *(Path(name).absolute() for name in named if name),
        *map(Path, site.getsitepackages()),
    ]
    if site.ENABLE_USER_SITE:
        folders.append(Path(site.getusersitepackages()))
    return list(dict.fromkeys(str(folder) for folder in folders if folder.is_dir()))


def _pkg_config() -> str:
    return f"""\
prefix=${{pcfiledir}}/../..

Name: kvarn
Description: A GGUF runtime for contexts that do not fit in memory
Version: {__version__}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -lkvarn -Wl,-rpath,${{prefix}}/lib
"""
