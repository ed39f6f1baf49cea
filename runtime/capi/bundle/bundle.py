"""Makes the folder, part by part, and tells what fills it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ....system.errors import KvarnError
from ..build import BuildError, Place, build, check_python
from . import kernels, libraries, packages, python

_MARK = Path("share", "licenses", "kvarn")


def bundle(
    out: Path, which: str, models: Sequence[Path], say: Callable[[str], None] = lambda _: None
) -> Path:
    """Make the folder `out`, in place of an earlier bundle; returns the path of the library.

    which: the kernels to compile ahead, one of `kernels.CHOICES`, for these models. `say` is told
    what was compiled and what fills the folder. Raises `BuildError`, also where `out` holds
    anything else.
    """
    check_python()
    _clear(out)
    python.copy_standard_library(out)
    own = packages.copy_packages(out)
    linked = libraries.copy_libraries(out, own / "bundled")
    # Those are loaded with the library, so that extension modules find them wherever DIR is.
    link = [
        f"-L{out / 'lib'}",
        f"-l:{python.LIBRARY}",
        "-Wl,--no-as-needed",
        *(f"-l:{name}" for name in linked),
        "-Wl,--as-needed",
    ]
    library = build(out, Place("", "", [""], [*link, "-Wl,-rpath,$ORIGIN"]))
    python.make_program(out, [*link, "-Wl,-rpath,$ORIGIN/../lib"])
    kernels.compile_ahead(own / "bundled", which, models, say)
    python.compile_modules(out)
    for line in _sizes(out):
        say(line)
    return library


def _clear(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / _MARK).is_dir()):
        raise BuildError(f"bundling libkvarn: {out} is there and no earlier bundle: remove it")
    try:
        shutil.rmtree(out)
    except OSError as error:
        raise KvarnError(f"bundling libkvarn: {out} cannot be removed: {error}") from error


def _sizes(out: Path) -> list[str]:
    """Megabytes of the parts, the largest first."""
    site = packages.folder(out)
    parts = {"the standard library": n_bytes(python.standard_library(out)) - n_bytes(site)}
    parts |= {f"the package {one.name}": n_bytes(one) for one in site.iterdir() if one.is_dir()}
    ahead = n_bytes(site / "kvarn" / "bundled")
    parts["kernels compiled ahead and libgomp"] = ahead
    parts["the package kvarn"] -= ahead
    parts["shared libraries"] = sum(one.lstat().st_size for one in (out / "lib").glob("*.so*"))
    whole = n_bytes(out)
    shown = [(size, name) for name, size in parts.items() if size >= 1e6]
    rest = whole - sum(size for size, _ in shown)
    return [
        f"{size / 1e6:.0f} MB {name}"
        for size, name in [(whole, "in all"), *sorted(shown, reverse=True), (rest, "the rest")]
    ]


def n_bytes(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(one.lstat().st_size for one in folder.rglob("*") if one.is_file())
