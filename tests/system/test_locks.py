"""Locks between processes. Two open files of one process exclude each other, as those of two do."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.system.locks import locked


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_lock_that_another_has_for_too_long_is_done_without(folder: int, tmp_path: Path) -> None:
    with locked(folder, "free", 60), locked(folder, "kept", 60):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["free", "kept"]
        begin = time.monotonic()
        with locked(folder, "kept", 0.1):
            assert time.monotonic() - begin >= 0.1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_file_has_no_locks(folder: int) -> None:
    begin = time.monotonic()
    for _ in range(2):
        with locked(folder, "nowhere/name", 60):
            assert time.monotonic() - begin < 10


def test_a_link_is_not_followed(folder: int, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "name").symlink_to("other")
    with locked(folder, "name", 60):
        pass
    assert (tmp_path / "other").read_text() == "kept"
