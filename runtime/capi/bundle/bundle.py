"""Makes the folder part by part, and reports the sizes of the parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ....system.errors import KvarnError
from ..build import BuildError, PythonPaths, build, check_python
from . import kernels, packages, python

_MARK = Path("share", "licenses", "kvarn")


def bundle(
    out: Path, which: str, models: Sequence[Path], say: Callable[[str], None] = lambda _: None
) -> Path:
    """Make the folder `out`, in place of an earlier bundle; returns the path of the library.

    which: the kernels to compile ahead, one of `kernels.CHOICES`, for these models. say: is called
    with lines about the kernels and the sizes of the parts. Raises `BuildError`, also where `out`
    holds anything else.
    """
    check_python()
    _clear(out)
    python.copy_standard_library(out)
    package = packages.copy_packages(out)
    linked = python.copy_libraries(out, package / "bundled")
    # The library loads these, so that extension modules find them wherever DIR is.
    link = [
        f"-L{out / 'lib'}",
        f"-l:{python.LIBRARY}",
        "-Wl,--no-as-needed",
        *(f"-l:{name}" for name in linked),
        "-Wl,--as-needed",
    ]
    library = build(out, PythonPaths("", "", [""], [*link, "-Wl,-rpath,$ORIGIN"]))
    python.make_program(out, [*link, "-Wl,-rpath,$ORIGIN/../lib"])
    kernels.compile_ahead(package / "bundled", which, models, say)
    python.compile_modules(out)
    for line in _sizes(out):
        say(line)
    return library


def _clear(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / _MARK).is_dir()):
        raise BuildError(f"bundling libkvarn: {out} exists and is not an earlier bundle: remove it")
    try:
        shutil.rmtree(out)
    except OSError as error:
        raise KvarnError(f"bundling libkvarn: {out} cannot be removed: {error}") from error


def _sizes(out: Path) -> list[str]:
    """Megabytes of the parts, the largest first."""
    site = python.site_packages(out)
    parts = {"the standard library": n_bytes(python.standard_library(out)) - n_bytes(site)}
    parts |= {f"the package {path.name}": n_bytes(path) for path in site.iterdir() if path.is_dir()}
    ahead = n_bytes(site / "kvarn" / "bundled")
    parts["kernels compiled ahead and libgomp"] = ahead
    parts["the package kvarn"] -= ahead
    parts["shared libraries"] = sum(file.lstat().st_size for file in (out / "lib").glob("*.so*"))
    whole = n_bytes(out)
    shown = [(size, name) for name, size in parts.items() if size >= 1e6]
    rest = whole - sum(size for size, _ in shown)
    return [
        f"{size / 1e6:.0f} MB {name}"
        for size, name in [(whole, "in all"), *sorted(shown, reverse=True), (rest, "the rest")]
    ]


def n_bytes(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
