"""Folders for kernels."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.jit.kernel_cache import events, files, folders


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Has this process keep its kernels below the roots given, and gives their folders."""

    monkeypatch.setattr(events._State, "listener", None)  # other tests run commands

    def use(*roots: Path) -> list[Path]:
        monkeypatch.setattr(folders, "candidates", lambda: list(roots))
        monkeypatch.setattr(files, "_folders", files._Folders())
        return [root / "kernels" / folders.key() for root in roots]

    return use
