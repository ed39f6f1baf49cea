"""`kvarn chat` as its users meet it: on a pipe, and on a terminal with Ctrl-C."""

import io
import json
import re
import signal
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.answering.chat.input import TurnReader
from kvarn.commands.answering.chat.loop import Chat as ChatLoop
from kvarn.runtime.chat.conversation import Turn
from kvarn.runtime.context import Progress

from ..pseudo_terminal import PseudoTerminal, pseudo_terminal

ANSWER = ["-n", "4", "--temp", "0"]


@pytest.fixture
def chat(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> "Chat":
    return Chat(tiny_path, capsys, monkeypatch)


class Chat:
    """Runs the command on lines of input: exit code, stdout, stderr."""

    def __init__(self, path: Path, capsys, monkeypatch) -> None:
        self._path, self._capsys, self._patch = path, capsys, monkeypatch

    def __call__(self, text: str, *arguments: str) -> tuple[int, str, str]:
        self._patch.setattr(sys, "stdin", io.StringIO(text))
        code = main(["chat", "-m", str(self._path), "-c", "400", *ANSWER, *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


def test_each_line_of_a_pipe_is_a_turn(chat: Chat) -> None:
    code, out, err = chat("Hello\n\nAnd you?\n")
    assert code == 0
    assert "> " not in err
    assert "no chat template" in err and "### User:" in err
    once, _, _ = chat("Hello\n")[1].partition("\n")
    assert out.startswith(once)
    assert chat("Hello\n\nAnd you?\n")[1] == out


def test_the_second_turn_reads_only_what_is_new(chat: Chat) -> None:
    _, _, err = chat("Hello\n/stats\nAnd you?\n/stats\n")
    (first_kept, first_read), (kept, read) = (
        map(int, found) for found in re.findall(r"last turn: (\d+) tokens kept, (\d+) read", err)
    )
    assert first_kept == 0
    # The context then held the first prompt and all but the last token of an answer.
    assert first_read <= kept <= first_read + 3
    assert read < kept + first_read


def test_commands(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    code, out, err = chat(
        f"/help\n/system\n/system Be kind\nHello\n/regen\nMore\n/undo\n/save {path}\n/reset\n"
        f"/save {tmp_path / 'empty.json'}\n/load {path}\n/system -\n//sent\n/quit\nnot read\n"
    )
    assert code == 0, err
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["system"] == "Be kind"
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"]
    assert json.loads((tmp_path / "empty.json").read_text())["messages"] == []
    for told in ("/undo", "message: none", "Be kind", "2 messages are left", "read 2 messages"):
        assert told in err
    assert out.count("\n") >= 4


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/bogus", "there is no command /bogus"),
        ("/save", "/save needs a file"),
        ("/load /no/such.json", "/no/such.json: no such file"),
        ("/undo", "nothing to undo"),
        ("/undo 3", "/undo takes no more words"),
        ("/regen", "nothing to answer"),
        ("x" * 2000, "leaves no room for an answer"),
    ],
)
def test_errors_are_one_line_and_the_chat_goes_on(chat: Chat, line: str, told: str) -> None:
    code, out, err = chat(f"{line}\nHello\n")
    assert code == 1
    assert [told in part for part in err.splitlines()].count(True) == 1
    assert out


def test_statistics_on_leaving(chat: Chat) -> None:
    assert "tok/s" in chat("Hello\n", "--stats")[2]


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ('a\n"""b\nc"""\nd', ["a", "b\nc", "d"]),
        ('"""one"""\n', ["one"]),
        ('"""\nx\n"""\n', ["\nx\n"]),
        ('"""open\nend', ["open\nend"]),
        ("", []),
    ],
)
def test_blocks_between_triple_quotes(
    text: str, turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    reader = TurnReader()
    assert list(iter(reader.read, None)) == turns


@dataclass
class Script:
    """A conversation whose answer is interrupted by the user at a given piece."""

    pieces: list[str]
    interrupt_at: int
    reading: bool = False
    last: Turn | None = None
    closed: bool = False

    def ask(self, text: str, progress: Progress) -> Generator[str, None, None]:
        try:
            if self.reading:
                signal.raise_signal(signal.SIGINT)
                progress(512, 1024)
            for i, piece in enumerate(self.pieces):
                if i == self.interrupt_at:
                    signal.raise_signal(signal.SIGINT)
                yield piece
            self.last = Turn(0, 1, "context")
        finally:
            self.closed = True

    def regenerate(self, progress: Progress) -> Generator[str, None, None]:
        raise OSError("broken")


class Keys:
    """What a user does at the prompt: a line, Ctrl-C, or the end of input."""

    interactive = True

    def __init__(self, *keys: str | None) -> None:
        self._keys = list(keys)

    def read(self) -> str | None:
        key = self._keys.pop(0)
        if key == "^C":
            raise KeyboardInterrupt
        return key


@pytest.mark.parametrize("reading", [False, True])
def test_ctrl_c_keeps_what_was_shown(reading: bool, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    script = Script(["a", "b", "c", "d"], 2, reading)
    assert ChatLoop(script, Keys("Hello", "^C", None)).run() == 0  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert out == ("" if reading else "abc\n")
    assert ("stopped before the answer" if reading else "stopped: what was written stays") in err
    assert script.closed
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_in_an_answer_leaves() -> None:
    script = Script(["a"], 0)
    ask = script.ask

    def twice(text: str, progress: Progress) -> Generator[str, None, None]:
        signal.raise_signal(signal.SIGINT)
        return (yield from ask(text, progress))

    script.ask = twice  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ChatLoop(script, Keys("Hello")).run()  # type: ignore[arg-type]
    assert script.closed


def test_ctrl_c_twice_in_a_row_leaves_with_130() -> None:
    keys = Keys("^C", "", "^C", "^C")
    assert ChatLoop(Script([], 0), keys).run() == 130  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["/undo\nHello", "//a\n/undo", "Hello\n/quit\nyou", "/usr/bin/x: bad\nWhy?"]
)
def test_messages_of_several_lines_are_sent_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    script = Script(["a"], 9)
    ask = script.ask
    script.ask = lambda text, progress: (asked.append(text), ask(text, progress))[1]  # type: ignore[method-assign]
    assert ChatLoop(script, Keys(text, None)).run() == 0  # type: ignore[arg-type]
    assert asked == [text]
    assert "there is no command" not in capsys.readouterr().err


def test_a_full_context_and_other_failures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    loop = ChatLoop(Script(["a"], 9), Keys("Hello", "/regen", None))  # type: ignore[arg-type]
    assert loop.run() == 0
    err = capsys.readouterr().err
    assert "the context is full" in err
    assert "kvarn: broken" in err


def interrupt(user: PseudoTerminal) -> None:
    # readline shows its prompt a moment before it listens; Python would hear of a signal that falls
    # in between only at the next key.
    time.sleep(0.5)
    user.process.send_signal(signal.SIGINT)


def talk(model: Path) -> AbstractContextManager[PseudoTerminal]:
    """A `kvarn chat` on a pseudo-terminal."""
    return pseudo_terminal("-m", "kvarn", "chat", "-m", str(model), "--temp", "0")


def test_ctrl_c_stops_the_answer_and_the_end_of_input_leaves(tiny_path: Path) -> None:
    with talk(tiny_path) as user:
        user.wait_for("> ")
        user.type("Tell me a story that never ends\n")
        user.wait_for("\n")
        time.sleep(1.0)  # into the answer, or the reading, or the compilation before it
        interrupt(user)
        user.wait_for("stopped")
        user.wait_for("> ")
        user.type("/stats\n")
        user.wait_for("tok/s")
        user.wait_for("> ")
        user.type("\x04")
        assert user.process.wait(30) == 0


def test_two_ctrl_c_at_the_prompt_leave(tiny_path: Path) -> None:
    with talk(tiny_path) as user:
        user.wait_for("> ")
        interrupt(user)
        user.wait_for("Ctrl-C again leaves")
        user.wait_for("> ")
        user.type("/undo\n")
        user.wait_for("nothing to undo")
        user.wait_for("> ")
        interrupt(user)
        user.wait_for("Ctrl-C again leaves")
        user.wait_for("> ")
        interrupt(user)
        assert user.process.wait(30) == 130
