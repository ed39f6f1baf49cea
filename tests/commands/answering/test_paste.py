"""What is pasted into `kvarn chat` at a terminal is one message, however the terminal sends it."""

import json
import time

import pytest

from ..pseudo_terminal import PseudoTerminal, pseudo_terminal

READ = """
import json, sys
if "bare" in sys.argv: sys.modules["readline"] = None
from kvarn.commands.answering.chat.input import TurnReader
reader = TurnReader()
for text in iter(reader.read, None):
    print(json.dumps(text), file=sys.stderr, flush=True)
print("answers", flush=True)
print("end", file=sys.stderr)
"""
CODE = "def f():\n    '''/undo'''\n\n\treturn 1\n/undo\nWhy?"
WAYS = [(piped, editing) for piped in (False, True) for editing in ("readline", "bare")]


def paste(user: PseudoTerminal, text: str, marked: bool) -> None:
    """As terminals do: line ends are carriage returns; marked where a program asked for it."""
    text = text.replace("\n", "\r")
    user.type(f"\x1b[200~{text}\x1b[201~" if marked else text)


def told(text: str) -> str:
    """How the program above reports a message."""
    return json.dumps(text) + "\r\n"


@pytest.mark.parametrize(("piped", "editing"), WAYS)
def test_pastes_are_messages_and_typed_lines_are_their_own(piped: bool, editing: str) -> None:
    with pseudo_terminal("-c", READ, editing, piped=piped) as user:
        if editing == "readline":  # which asks the terminal to mark pastes
            user.wait_for("\x1b[?2004h")
        user.wait_for("> ")
        time.sleep(0.3)
        for marked in (False, True) if editing == "readline" else (False,):
            paste(user, CODE, marked)
            time.sleep(0.3)
            user.type("\r")
            user.wait_for(told(CODE))
            user.wait_for("> ")
        paste(user, f"{CODE}\n", marked=False)  # without marks, its last line end sends it
        user.wait_for(told(CODE))
        user.wait_for("> ")
        time.sleep(0.3)
        for word in ("one", "two", "/undo"):
            user.type(f"{word}\r")
            time.sleep(0.2)
        for word in ("one", "two", "/undo"):
            user.wait_for(told(word))
        user.wait_for("> ")
        user.type("\x04")
        if editing == "readline":
            user.wait_for("\x1b[?2004l")
        user.wait_for("end")
        if piped:
            assert user.process.stdout is not None
            assert user.process.stdout.read() == b"answers\n"


@pytest.mark.parametrize("editing", ["readline", "bare"])
def test_blocks_take_pastes_until_they_are_closed(editing: str) -> None:
    docstring = '"""A mill."""\nx = 1'
    with pseudo_terminal("-c", READ, editing) as user:
        user.wait_for("> ")
        time.sleep(0.3)
        user.type('"""\r')
        user.wait_for("… ")
        paste(user, 'def f():\n    """One."""\n    return 1\n', marked=False)
        user.wait_for("… ")
        time.sleep(0.3)
        user.type('"""\r')
        user.wait_for(told('\ndef f():\n    """One."""\n    return 1\n'))
        user.wait_for("> ")
        paste(user, f"{docstring}\n", marked=False)
        user.wait_for(told(docstring))
        user.wait_for("> ")
        time.sleep(0.3)
        user.type("one\r\x04")  # the end of input behind a line is not lost
        user.wait_for(told("one"))
        user.wait_for("end")
