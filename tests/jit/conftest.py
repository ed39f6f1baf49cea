"""Folders for kernels."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.jit import roots
from kvarn.jit.kernel_cache import events, files, folders


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Has this process keep its kernels below the roots given, and gives their folders."""

    monkeypatch.setattr(events._State, "listener", None)  # other tests run commands

    def use(*below: Path) -> list[Path]:
        monkeypatch.setattr(roots, "candidates", lambda: list(below))
        monkeypatch.setattr(files, "_folders", files._Folders())
        return [root / "kernels" / folders.key() for root in below]

    return use
