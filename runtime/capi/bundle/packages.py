"""The packages of a bundle: kvarn's rooms that run models, and the packages that they import."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from .... import __version__
from ..build import HERE, BuildError
from .python import site_packages

NEEDED = ("numpy", "numba", "llvmlite", "jinja2", "markupsafe", "xxhash", "cffi")
"""Distributions. Of cffi the backend alone. Not hub downloads, progress bars, YAML, completion."""
ROOMS = ("system", "jit", "ops", "cuda_ops", "models", "runtime")
_PACKAGE = HERE.parents[1]

_LEFT_OUT = re.compile(
    r"(.*/)?(tests|__pycache__)/.*|\.\./.*|.*\.(pyc|pyi|pxd|h|hpp|c|cpp|lib|a|rst|npy)|"
    r"cffi/.*|numpy/f2py/.*|numba/cuda/.*|numba/np/ufunc/(tbb|omp)pool.*|.*/(RECORD|INSTALLER|direct_url.*)"
)
_LICENCE = re.compile(r".*\.dist-info/(.*/)?[^/]*(licen[cs]e|copying|notice)[^/]*", re.IGNORECASE)


def copy_packages(out: Path) -> Path:
    """Copy all, and their licences; returns the folder of kvarn."""
    for name in NEEDED:
        try:
            _copy(distribution(name), name, out)
        except PackageNotFoundError as error:
            raise BuildError(f"bundling libkvarn: {name} is missing: pip install {name}") from error
    return _copy_kvarn(out)


def _copy(package: Distribution, name: str, out: Path) -> None:
    files = [(str(file), Path(str(package.locate_file(file)))) for file in package.files or ()]
    licences = [(inside, path) for inside, path in files if _LICENCE.fullmatch(inside)]
    if not licences:
        raise BuildError(
            f"bundling libkvarn: {name} {package.version} has no licence among its files"
        )
    for inside, path in licences:
        to = out / "share" / "licenses" / name / Path(*Path(inside).parts[1:])
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    for inside, path in files:
        if not _LEFT_OUT.fullmatch(inside):
            to = site_packages(out) / inside
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)


def _copy_kvarn(out: Path) -> Path:
    """The rooms that run models, and the default model."""
    package = site_packages(out) / "kvarn"
    package.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "*.c", "*.h", "examples", "bundle")
    for room in ROOMS:
        shutil.copytree(_PACKAGE / room, package / room, ignore=skipped)
    for name in ("__init__.py", "py.typed"):
        shutil.copy(_PACKAGE / name, package / name)
    licence = out / "share" / "licenses" / "kvarn" / "LICENSE"
    licence.parent.mkdir(parents=True)
    shutil.copy(_licence(), licence)
    return package


def _licence() -> Path:
    """kvarn's licence: in its folder, or where an installer has put it."""
    if (licence := _PACKAGE / "LICENSE").is_file():
        return licence
    for file in distribution("kvarn").files or ():
        if _LICENCE.fullmatch(str(file)):
            return Path(str(file.locate()))
    raise BuildError(f"bundling libkvarn: the licence of kvarn {__version__} is missing")
