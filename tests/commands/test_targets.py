"""No command that writes touches a path that it did not make: `pack` apart, which has its own."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvarn.cli import main
from kvarn.runtime.attend.encoders import Dense, Learned, LearnedLayer
from kvarn.runtime.attend.encoders.sidecar import write_sidecar
from kvarn.runtime.attend.selections import Source, selection_file
from kvarn.runtime.chat.conversation import Conversation
from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.loading.load import load
from kvarn.runtime.tokenizer import ControlTexts
from kvarn.system.files import FileRefused
from lab.longctx.__main__ import main as longctx

TEXT = "The mill stood by the river, and the wheel turned all day. " * 40
HASH = ["--method", "hash", "--budget", "16", "--sink", "4", "--window", "8"]


def save_chat(path: str) -> int:
    context = load("model.gguf").context(16)
    conversation = Conversation(context, ChatTemplate.plain(ControlTexts()))
    try:
        conversation.save(Path(path))
    except FileRefused as error:
        print(f"kvarn: {error}", file=sys.stderr)
        return 1
    return 0


def command(*words: str) -> Callable[[str], int]:
    return lambda out: main([out if word == "OUT" else word for word in words])


WRITERS: dict[str, Callable[[str], int]] = {
    "convert": command("convert", "model.gguf", "OUT", "--type", "q8_0"),
    "embed": command("convert", "model.gguf", "OUT", "--embed-hash"),
    "quantize": command("quantize", "model.gguf", "OUT", "--type", "q8_0"),
    "imatrix": command("imatrix", "-m", "model.gguf", "-f", "t.txt", "-o", "OUT", "-c", "32"),
    "stats": command("run", "-m", "model.gguf", "-p", "x", "-n", "1", "--stats-json", "OUT"),
    "selections": command(
        "run", "-m", "model.gguf", "-f", "t.txt", "-n", "1", *HASH, "--record-selections", "OUT"
    ),
    "bench": command(
        *("bench", "-m", "model.gguf", "-d", "64", "-n", "1", "-p", "0", "-r", "1"),
        *(*HASH, "--record-selections", "OUT"),
    ),
    "lens": command("lens", "s.bin", "-m", "model.gguf", "-o", "OUT"),
    "save": save_chat,
}
REFUSED_ONLY: dict[str, Callable[[str], int]] = {
    "longctx": lambda out: longctx(["-m", "model.gguf", "--depths", "64", "--json", out]),
}
if find_spec("torch") is not None:
    REFUSED_ONLY["learn"] = command(
        "learn", "model.gguf", "--text", "t.txt", "-o", "OUT", "--length", "1024"
    )
    REFUSED_ONLY["checkpoint"] = lambda out: main(
        ["learn", "model.gguf", "--text", "t.txt", "-o", out.removesuffix(".checkpoint")]
    )


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Of every path below: what it is, its inode, and its content or where it leads."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_ino, content)
    return found


def to_device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except (OSError, AttributeError):
        pytest.skip("only root makes devices, where the system lets it")


def to_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # the name of a socket is short


TARGETS: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("precious"),
    "dangling link": lambda path: path.symlink_to("nothing"),
    "link to a folder": lambda path: path.symlink_to("folder"),
    "pipe": os.mkfifo,
    "device": to_device,
    "socket": to_socket,
    "folder": lambda path: path.mkdir(),
}


@pytest.fixture
def workplace(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model, a text, and what a user has beside the target."""
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    place = tmp_path / "work"
    (place / "folder").mkdir(parents=True)
    monkeypatch.chdir(place)
    (place / "model.gguf").write_bytes(tiny_path.read_bytes())
    (place / "t.txt").write_text(TEXT)
    (place / "precious").write_text("a user's own")
    model = load(tiny_path)
    source = Source(model.config.n_layers, 2, model.name, model.fingerprint, "")
    with selection_file(place / "s.bin", source, [1, 2, 3]) as writer:
        writer.add(0, 3, np.zeros((2, 1), np.uint32), np.ones(2, np.int64))
    write_sidecar(place / "model.hash.gguf", encoders_of(model), model.file.architecture)
    yield place


def encoders_of(model) -> Learned:
    config = model.config

    def dense(heads: int) -> tuple[Dense, ...]:
        widths = (config.head_dim, 128, 128, 32)
        return tuple(
            Dense(np.zeros((heads, b, a), np.float16), np.zeros((heads, b), np.float32))
            for a, b in pairwise(widths)
        )

    layer = LearnedLayer(dense(config.n_heads), dense(config.n_kv_heads))
    layers = dict.fromkeys(range(config.n_layers), layer)
    return Learned(32, 128, 1024, model.fingerprint, model.name, layers)


@pytest.mark.parametrize("kind", [*TARGETS, "nowhere"])
@pytest.mark.parametrize("name", [*WRITERS, *REFUSED_ONLY])
def test_other_targets_than_files_are_refused_before_any_work(
    workplace: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    out = "out.gguf.checkpoint" if name == "checkpoint" else "out.gguf"
    if kind == "nowhere":
        out = f"none/{out}"
    else:
        TARGETS[kind](workplace / out)
    before = snapshot(workplace)
    assert (WRITERS | REFUSED_ONLY)[name](out) == 1
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 1 and "out.gguf" in lines[0] and not printed.out, lines
    assert snapshot(workplace) == before


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("old", [None, b"older"])
def test_what_stands_beside_the_target_stays(workplace: Path, name: str, old: bytes | None) -> None:
    out = workplace / "out.gguf"
    for i, end in enumerate((".part", ".tmp", ".new", ".checkpoint")):
        beside = workplace / f"out.gguf{end}"
        [lambda p: p.symlink_to("precious"), lambda p: p.write_text("mine"), os.mkfifo][i % 3](
            beside
        )
    (workplace / f".out.gguf.{0:016x}.part").symlink_to("precious")
    os.mkfifo(workplace / f".out.gguf.{1:016x}.part")
    if old is not None:
        out.write_bytes(old)
    before = snapshot(workplace)
    assert WRITERS[name]("out.gguf") == 0
    after = snapshot(workplace)
    mode, inode, content = after.pop("out.gguf")
    assert stat.S_ISREG(int(str(mode))) and content not in (b"", old)
    if old is not None:
        assert before.pop("out.gguf")[1] != inode  # another file took its name
    assert after == before


def test_files_to_read_from_are_not_written_to(workplace: Path, capsys) -> None:
    model = ["-m", "model.gguf"]
    for words in (
        ["imatrix", *model, "-f", "t.txt", "-o", "model.gguf"],
        ["imatrix", *model, "-f", "t.txt", "-o", "t.txt"],
        ["quantize", "model.gguf", "model.gguf", "--type", "q8_0"],
        ["convert", "model.gguf", "model.gguf", "--embed-hash"],
        ["run", *model, "-f", "t.txt", "--stats-json", "t.txt"],
        ["run", *model, "-f", "t.txt", *HASH, "--record-selections", "model.gguf"],
        ["lens", "s.bin", *model, "-o", "s.bin"],
        ["lens", "s.bin", *model, "-o", "model.gguf"],
    ):
        before = snapshot(workplace)
        assert main(words) == 1, words
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert snapshot(workplace) == before


def test_an_answer_does_not_leave_the_folder_of_an_evaluation(workplace: Path) -> None:
    from kvarn.evals.quality.folder import Answer, ContextFolder

    for i, make in enumerate(TARGETS.values()):
        folder = workplace / f"context-{i}"
        folder.mkdir()
        make(folder / "answers.jsonl")
        before = snapshot(workplace)
        with pytest.raises(OSError):
            ContextFolder(folder).add(Answer("full", "key", 0, 1.0, "x"))
        assert snapshot(workplace) == before
    ContextFolder(workplace / "folder").add(Answer("full", "key", 0, 1.0, "x"))
    assert json.loads((workplace / "folder" / "answers.jsonl").read_text())["arm"] == "full"
