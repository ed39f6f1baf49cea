"""Checkpoints: what was written comes back, and nobody else's file is read, replaced or removed."""

import io
import os
import pickle
import socket
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kvarn.convert.learn.checkpoint import Checkpoint, State
from kvarn.convert.learn.settings import LearnError
from kvarn.system.files import FileRefused

STATE = State({"seed": 0, "text": "x"}, 3, {1: {"model.w": np.ones((2, 3), np.float32)}})


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert Checkpoint(path).read() is None
    first = Checkpoint(path)
    first.write(STATE)
    first.write(STATE)
    second = Checkpoint(path)
    state = second.read()
    assert state is not None and (state.about, state.done) == (STATE.about, 3)
    np.testing.assert_array_equal(state.layers[1]["model.w"], np.ones((2, 3)))
    second.remove()
    assert not list(tmp_path.iterdir())


class Ran:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_nothing_in_a_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint"
    objects = io.BytesIO()
    np.savez(objects, about=np.array([Ran()], object), done=0)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.npy", bytes(1 << 24))
    whole = io.BytesIO()
    np.savez(whole, about="{}", done=0)
    for data in (
        *(b"", b"something else", pickle.dumps(Ran()), objects.getvalue(), bomb.getvalue()),
        whole.getvalue()[:-9],
    ):
        path.write_bytes(data)
        with pytest.raises(LearnError, match="not a checkpoint of `kvarn learn`"):
            Checkpoint(path).read()
        assert path.read_bytes() == data and not Path("ran").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "socket"])
def test_other_things_than_files_are_refused_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Checkpoint(tmp_path / "mine").write(STATE)
    path = tmp_path / "checkpoint"
    match kind:
        case "link":
            path.symlink_to("mine")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind("checkpoint")
    inode = path.lstat().st_ino
    checkpoint = Checkpoint(path)
    with pytest.raises(FileRefused):
        checkpoint.read()
    with pytest.raises((LearnError, FileRefused)):
        checkpoint.write(STATE)
    checkpoint.remove()
    assert path.lstat().st_ino == inode and not stat.S_ISREG(path.lstat().st_mode)


def test_a_file_that_took_its_place_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    one, other = Checkpoint(path), Checkpoint(path)
    one.write(STATE)
    other.read()
    other.write(STATE)  # a second process
    for _ in range(2):
        with pytest.raises(LearnError, match="replaced by another file"):
            one.write(STATE)
        one.remove()
        assert path.exists()
        path.write_text("a user's own")


def test_another_users_file_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(path).write(STATE)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(LearnError, match="belongs to another user"):
        Checkpoint(path).read()
