"""Optional packages, and the command that installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import KvarnError

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch>=2.6",),
    "cuda": ("torch>=2.11", "triton>=3.6"),
    "lib": ("cffi>=2",),
    "docs": ("beautifulsoup4>=4.13", "lxml>=5.3", "mammoth>=1.9", "markdownify>=1", "pypdf>=6"),
    "ray": ("ray>=2.60",),
    "serve": (
        "httpx>=0.28",
        "llguidance>=1.9",
        "msgspec>=0.20",
        "prometheus-client>=0.22",
        "starlette>=1.0",
        "uvicorn>=0.40",
    ),
}
"""Extra → its packages for pip. The same table as in pyproject.toml, which only a checkout has."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra's packages, however kvarn itself was installed."""
    return f"pip install {' '.join(repr(package) for package in EXTRAS[extra])}"


@contextmanager
def require_extra(extra: str, what: str) -> Iterator[None]:
    """Raises `KvarnError` for a package of an extra that is missing. what: needs it."""
    try:
        yield
    except ImportError as error:
        raise KvarnError(
            f"{what} needs the package {error.name}: {how_to_install(extra)}"
        ) from error
