"""What the user names is read to its end, or refused: nothing waits for ever."""

import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvarn.system.reading import InputRefused, read_file, read_start, read_stdin, read_text

READERS = [lambda path: read_file(path, 1 << 20), lambda path: read_start(path, 4), read_text]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipe", "pipe"),
        ("link to a pipe", "pipe"),
        ("folder", "a folder"),
        ("/dev/zero", "a device"),
        ("/dev/null", "a device"),
    ],
)
def test_what_has_no_end_is_refused_at_once(tmp_path: Path, read, name: str, words: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputRefused, match=words):
        read(tmp_path / name)


def test_files_are_read_through_links_and_within_the_limit(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"a mill")
    link.symlink_to(path)
    for one in (path, link):
        assert read_text(one) == read_file(one, 6) == b"a mill"
        assert read_start(one, 3) == b"a m"
        with pytest.raises(InputRefused, match="more than the 5 bytes"):
            read_file(one, 5)
    os.truncate(path, 1 << 40)  # a hole: no byte of it is read
    with pytest.raises(InputRefused, match="more than the"):
        read_text(path)


def test_a_text_comes_through_a_pipe_however_slowly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader, writer = os.pipe()

    def write() -> None:
        for part in (b"a mill", b" stood", b" by the river"):
            time.sleep(0.02)
            os.write(writer, part)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    # As a shell's process substitution names it.
    assert read_text(Path(f"/dev/fd/{reader}")) == b"a mill stood by the river"
    thread.join()
    os.close(reader)


def test_a_pipe_gives_no_more_than_the_limit() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a mill")
    with pytest.raises(InputRefused, match="more than the 5 bytes"):
        read_text(Path(f"/dev/fd/{reader}"), 5)
    os.close(reader)
    os.close(writer)


def test_standard_input_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, limit in ((b"", 0), (b"a mill", 6), (bytes(3 << 20), 3 << 20)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert read_stdin(limit) == data
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data + b"x")))
        with pytest.raises(InputRefused, match="standard input has more"):
            read_text(Path("-"), limit)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputRefused, match="closed"):
        read_stdin()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-m", "MODEL", "-n", "1", "-f", "BAD"],
        ["perplexity", "-m", "MODEL", "-f", "BAD"],
        ["imatrix", "-m", "MODEL", "-f", "BAD", "-o", "out"],
        ["pack", "build", "-m", "MODEL", "-f", "BAD", "-o", "./out"],
        ["eval", "-m", "MODEL", "--text", "BAD"],
        ["run", "-p", "x", "-m", "BAD"],
        ["tokenize", "x", "-m", "BAD"],
        ["inspect", "BAD"],
        ["quantize", "MODEL", "out.gguf", "--type", "q8_0", "--imatrix", "BAD"],
    ],
)
@pytest.mark.parametrize("bad", ["pipe", "/dev/zero"])
def test_commands_take_one_line_for_them(
    tiny_path: Path, tmp_path: Path, monkeypatch, capsys, arguments: list[str], bad: str
) -> None:
    from kvarn.cli import main

    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    names = {"MODEL": str(tiny_path), "BAD": bad}
    assert main([names.get(word, word) for word in arguments]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and bad in lines[0], lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


def test_a_prompt_from_a_substituted_process(tiny_path: Path) -> None:
    run = f"{sys.executable} -m kvarn run -m {tiny_path} -n 1 --temp 0"
    pieces = {
        subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=120).stdout
        for command in (
            f"{run} -f <(sleep 0.1; echo a mill)",
            f"echo a mill | {run} -f -",
        )
    }
    assert len(pieces) == 1
