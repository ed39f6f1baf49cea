"""Packs and sessions whose model, or whose pack, was moved to another place."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from kvarn.runtime.home import pack_path, remember_model, session_path
from lab.peers.model import write_model

from ...conftest import TINY
from ..pack_runner import TEXT, Kvarn

ONE = ["-n", "2", "--temp", "0"]


@pytest.fixture
def moving(run: Kvarn, tmp_path: Path) -> Kvarn:
    """Runs commands on a copy of the tiny model, which tests may move."""
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(run.model[1], copy)
    run.model = ["-m", str(copy)]
    return run


def started(run: Kvarn, kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a command line that begins, or goes on from, what `kind` keeps."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    return {
        "session": ["chat", "--session", name],
        "chat": ["chat", "--pack", name],
        "pack": ["run", "--pack", name, "-p", "x"],
        "kv": ["run", "--kv", f"{name}/", "-p", "x"],
        "build": ["pack", "build", "-f", run.text, "-o", name],
    }[kind] + ([] if kind == "build" else ONE)


KINDS = ["session", "chat", "pack", "kv", "build"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_place_of_a_model_is_given_once(
    moving: Kvarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def go_on(*options: str) -> tuple[int, str, str]:
        return moving(*started(moving, kind, "talk", monkeypatch), *options)

    if kind in ("chat", "pack", "build"):
        moving.build("talk")
    else:
        assert go_on(*moving.model)[0] == 0
    old, new = Path(moving.model[1]), tmp_path / "new.gguf"
    old.rename(new)
    code, _, err = go_on()
    assert code == 1
    assert err.count("\n") == 1
    assert f"{old}, which is gone: if it was moved, name its new place once with -m FILE" in err
    other = tmp_path / "other.gguf"
    write_model(other, "q8_0", TINY)
    code, _, err = go_on("-m", str(other))
    assert code == 1
    assert f"use the file that it was made with, {old}" in err
    assert "which is gone" in go_on()[2]
    assert go_on("-m", str(new))[0] == 0
    code, _, err = go_on()
    assert code == 0, err
    assert f"using the model of the pack: {new}" in err


def test_a_model_that_was_pulled_anew_is_recognised(moving: Kvarn, tmp_path: Path) -> None:
    moving.build("mill")
    new = tmp_path / "new.gguf"
    Path(moving.model[1]).rename(new)
    remember_model(new, "pulled")
    for _ in range(2):
        code, _, err = moving("run", "--pack", "mill", "-p", "x", *ONE)
        assert code == 0, err
        assert f"using the model of the pack: {new}" in err
    assert json.loads(moving("pack", "info", "mill", "--json")[1])["model_path"] == str(new)


def test_packs_that_cannot_be_written_keep_the_old_place(
    moving: Kvarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarn.runtime.packs import links

    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    moving.build("mill")
    before = (pack_path("mill") / "pack.json").read_bytes()
    new = tmp_path / "new.gguf"
    Path(moving.model[1]).rename(new)
    monkeypatch.setattr(links, "take_lock", refuse)
    assert moving("run", "--pack", "mill", "-m", str(new), "-p", "x", *ONE)[0] == 0
    assert (pack_path("mill") / "pack.json").read_bytes() == before


def test_the_new_place_of_a_sessions_pack_is_given_once(
    run: Kvarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only full segments are shared with the pack: shorter ones are copied.
    Path(run.text).write_text(TEXT * 3)
    run.build("mill")

    def chat(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        return run("chat", "-c", "8000", *ONE, "--session", "talk", *options)

    assert chat("--pack", "mill")[0] == 0
    old, new = pack_path("mill"), tmp_path / "moved"
    old.rename(new)
    code, _, err = chat()
    assert (code, err.count("\n")) == (1, 1)
    assert f"session talk begins with the pack {old}, which is gone" in err
    assert "name its new place once with --pack NAME" in err
    run.build("other")
    code, _, err = chat("--pack", "other")
    assert code == 1
    assert "expected" in err and "which was moved" in err
    code, _, err = chat("--pack", str(new))
    assert code == 0, err
    assert "2 messages so far" in err
    assert "4 messages so far" in chat()[2]
    assert "has begun already" in chat("--pack", str(new))[2]
    assert str(new) in run("pack", "info", f"{session_path('talk')}")[1]
