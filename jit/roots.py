"""Where kvarn keeps kernels, and the versions of the packages that make them. Imports no Numba."""

import os
from importlib.util import find_spec
from pathlib import Path


def candidates() -> list[Path]:
    """The folders below which kernels are kept, best first (`kernel_cache.folders`)."""
    chosen = os.environ.get("KVARN_CACHE")
    roots = [Path(chosen)] if chosen else []
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return [*roots, xdg / "kvarn"]
    try:
        return [*roots, Path.home() / ".cache" / "kvarn"]
    except RuntimeError:
        return roots


def version(package: str, file: str) -> str:
    """Content of a package's version file: quicker than importing it or importlib.metadata."""
    spec = find_spec(package)
    assert spec and spec.origin
    return Path(spec.origin).with_name(file).read_text()
