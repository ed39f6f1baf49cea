"""The doors to the terminal: what passes, into which encodings, and what fails how."""

import ast
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kvarn.system import terminal

PRODUCT = Path(terminal.__file__).parent.parent
NO_DOORS = ("setup.py", "lab/mini", "lab/longctx", "lab/peers", "runtime/documents/__main__.py")
"""No part of the command line: training and measuring from a checkout; processes whose output is
read by those that started them."""
HOSTILE = "\x1b]0;title\x07 \x9b2J größe 中\ud800 \udcff"
ENCODINGS = ("utf-8", "ascii", "latin-1", "cp1252", "utf-16", "shift_jis")


class Stream(io.TextIOWrapper):
    """A stream as strict as can be, on a terminal or not."""

    def __init__(self, encoding: str, tty: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding, errors="strict")
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


def sources() -> list[Path]:
    """The files of the rooms and of the root."""
    rooms = [folder for folder in PRODUCT.iterdir() if (folder / "__init__.py").is_file()]
    files = [*PRODUCT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    return [
        path
        for path in sorted(files)
        if not (relative := path.relative_to(PRODUCT).as_posix()).startswith(NO_DOORS)
        and relative != "system/terminal.py"
    ]


def bypasses(tree: ast.AST) -> set[str]:
    """Ways past the doors: writers by name, streams for anything but to ask if it is a terminal."""
    asked = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "isatty"
    }
    uses = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "pprint")):
                uses.add("print")
            case ast.Attribute(
                value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"
            ) if id(node) not in asked:
                uses.add(f"sys.{node.attr}")
            case ast.ImportFrom(module="sys" | "tqdm" | "tqdm.auto"):
                uses.add(f"from {node.module}")
            case ast.Import(names=[ast.alias(name="tqdm"), *_]):
                uses.add("import tqdm")
            case ast.Attribute(
                attr="print_exc"
                | "print_exception"
                | "print_stack"
                | "basicConfig"
                | "StreamHandler"
            ):
                uses.add(node.attr)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os"), attr="write"),
                args=[ast.Constant(value=1 | 2), *_],
            ):
                uses.add("os.write")
    return uses


def test_nothing_writes_to_the_terminal_but_the_doors() -> None:
    allowed = {
        "commands/answering/chat/input.py": {"sys.stdout"},  # flushed before its number changes
        "commands/parsing/parser.py": {"sys.stderr"},  # to tell argparse's two streams apart
        "convert/hf/vocabulary/worker.py": {"sys.stdout"},  # a pipe to the process that asked
        "commands/terminal/progress.py": {"from tqdm", "sys.stderr"},  # bars, kvarn's own names
        "runtime/capi/entry.py": {"sys.stderr", "sys.stdout"},  # taken from a host's process
    }
    uses = {
        path.relative_to(PRODUCT).as_posix(): bypasses(ast.parse(path.read_text()))
        for path in sources()
    }
    assert len(uses) > 200
    assert {path: ways for path, ways in uses.items() if ways} == allowed


@pytest.mark.parametrize(
    "line",
    [
        "print('x')",
        "sys.stdout.write('x')",
        "f(file=sys.stderr)",
        "from sys import stdout",
        "from tqdm import tqdm",
        "import tqdm",
        "traceback.print_exc()",
        "os.write(2, b'x')",
    ],
)
def test_that_check_finds(line: str) -> None:
    assert bypasses(ast.parse(line))
    assert not bypasses(ast.parse("sys.stdout.isatty(); say('x'); os.write(fd, b'x')"))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_takes_every_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Stream(encoding), Stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    terminal.say(HOSTILE)
    terminal.show(HOSTILE)
    terminal.generate(HOSTILE)
    message, shown, generated = *err.text.splitlines(), *out.text.split("\n")
    escaped = r"\x1b]0;title\x07 \x9b2J"
    assert message.startswith(f"kvarn: {escaped}")
    assert shown.startswith(escaped)
    assert generated.startswith("\x1b]0;title\x07")
    for text in (message, shown, generated):
        assert r"\ud800 \udcff" in text, "what no encoding has is not lost"


@pytest.mark.parametrize("together", [True, False])
def test_what_is_said_begins_a_line_where_both_streams_end_in_one_place(
    together: bool, tmp_path: Path
) -> None:
    code = (
        "from kvarn.system.terminal import generate, say; generate('The mill'); say('one'); "
        "say('two'); generate('stood\\n'); say('three')"
    )
    out = (tmp_path / "out").open("w+")
    err = out if together else (tmp_path / "err").open("w+")
    with out, err:
        subprocess.run([sys.executable, "-c", code], stdout=out, stderr=err, check=True)
        texts = [(out.seek(0), out.read())[1], (err.seek(0), err.read())[1]]
    if together:
        assert texts[0] == "The mill\nkvarn: one\nkvarn: two\nstood\nkvarn: three\n"
    else:
        assert texts == ["The millstood\n", "kvarn: one\nkvarn: two\nkvarn: three\n"]


def test_a_terminal_gets_no_controls_and_a_pipe_what_was_generated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = ["one\r\n\x1b", "[31mtwo\x9b", "0m\b\t", "中"]
    for tty, expected in ((True, "one\n[31mtwo0m\t中"), (False, "".join(pieces))):
        out = Stream("utf-8", tty)
        monkeypatch.setattr(sys, "stdout", out)
        for piece in pieces:
            terminal.generate(piece)
            assert out.text, "at once"
        assert out.text == expected


def test_paths_are_exact_in_a_pipe_and_escaped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = Path(os.fsdecode(b"a\nb\xff\x1bc"))
    for tty, expected in ((True, rb"a\nb\udcff\x1bc" + b"\n"), (False, b"a\nb\xff\x1bc\n")):
        out = Stream("ascii", tty)
        monkeypatch.setattr(sys, "stdout", out)
        terminal.show_path(path)
        assert out.buffer.getvalue() == expected  # type: ignore[attr-defined]


def test_a_message_is_one_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("a\nkvarn: forged" + "x" * 10**6)
    err = capsys.readouterr().err
    assert err.startswith(r"kvarn: a\nkvarn: forged")
    assert err.count("\n") == 1
    assert len(err) < 3000


def test_what_libraries_say_passes_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    hook, handlers = warnings.showwarning, list(logging.getLogger().handlers)
    with terminal.capture_libraries():
        warnings.warn("a\n\x1b[31m", RuntimeWarning, stacklevel=1)
        logging.getLogger("some.library").warning("b %s", "\x1b[32m\n")
        logging.getLogger("some.library").info("not this")
    assert capsys.readouterr().err.splitlines() == [
        r"kvarn: RuntimeWarning: a\n\x1b[31m",
        r"kvarn: some.library: b \x1b[32m\n",
    ]
    assert warnings.showwarning is hook
    assert logging.getLogger().handlers == handlers


def kvarn(redirections: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kvarn", *arguments]
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirections}', "bash", *command],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirections", "arguments", "code", "message"),
    [
        (">&-", "--version", 1, b"kvarn: standard output: Bad file descriptor\n"),
        (">&- 2>&-", "--version", 1, b""),
        (">&- 2>&- <&-", "--no-such", 2, b""),
        ("2>&-", "--version", 0, b""),
        ("2>&-", "--no-such", 2, b""),
        ("<&-", "--version", 0, b""),
        ("<&-", "tokenize -f -", 1, b"kvarn: standard input: Bad file descriptor\n"),
        (">/dev/full", "--version", 1, b"kvarn: standard output: No space left on device\n"),
        ("2>/dev/full", "--no-such", 2, b""),
        ("2>/dev/full", "inspect none", 1, b""),
        ("> >(true)", "--help", 0, b""),
        ("2> >(true)", "inspect none", 1, b""),
    ],
)
def test_streams_that_take_nothing(
    redirections: str, arguments: str, code: int, message: bytes
) -> None:
    if "/dev/full" in redirections and not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full on this system")
    done = kvarn(redirections, *arguments.split())
    assert (done.returncode, done.stderr) == (code, message)


def test_a_chat_names_the_input_that_it_cannot_read() -> None:
    done = kvarn("<&-", "chat")
    assert done.returncode == 1
    assert done.stderr.endswith(b"\nkvarn: standard input: Bad file descriptor\n")


def test_a_closed_stream_is_no_file_that_is_opened_next(tmp_path: Path) -> None:
    code = (
        "import json; from kvarn.system.terminal import open_streams, say; open_streams(); "
        f"file = open({str(tmp_path / 'new')!r}, 'w+'); say('x'); "
        f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps([file.fileno(), file.read()]))"
    )
    subprocess.run(
        ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code],
        check=True,
        timeout=60,
    )
    number, written = json.loads((tmp_path / "told").read_text())
    assert number > 2
    assert written == ""
