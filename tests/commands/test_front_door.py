"""`main` turns whatever happens into an exit code and at most one line."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from kvarn import cli
from kvarn.cli import main
from kvarn.commands.machine import doctor
from kvarn.system.errors import KvarnError
from kvarn.system.text import lines
from lab.peers.model import write_model

from ..conftest import TINY

EVIL = "\x1b]0;title\x07 \x9b2J\nkvarn: forged\r\u202e"


class Panic(BaseException):
    """What a panic in Rust becomes: no Exception."""


def raising(error: BaseException) -> Callable[..., int]:
    def run(*_: object, **__: object) -> int:
        raise error

    return run


UNFORESEEN = [
    ValueError(EVIL),
    ValueError(),
    RecursionError("maximum recursion depth exceeded"),
    AssertionError(),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    Panic("called `Option::unwrap()` on a `None` value"),
    ExceptionGroup("two", [ValueError("one"), KeyError("two")]),
]
FORESEEN = [
    (KvarnError(EVIL), "kvarn: forged"),
    (OSError(28, "No space left on device", 3), "3: No space"),
    (OSError(28, "No space left on device", b"a\xff"), "No space"),
    (OSError("no number"), "no number"),
    (FileNotFoundError(2, "No such file or directory", EVIL), "no such file"),
    (MemoryError(), "out of memory"),
]


def told(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["doctor"]) == 1, error
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvarn: ")
    assert captured.err.count("\n") == 1
    assert lines(captured.err) == captured.err
    return captured.err


@pytest.mark.parametrize("where", ["command", "parser"])
@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_what_nobody_foresaw_is_one_line_with_a_hint(
    where: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KVARN_DEBUG", raising=False)
    owner, name = (doctor, "run") if where == "command" else (cli, "build_parser")
    monkeypatch.setattr(owner, name, raising(error))
    line = told(error, capsys)
    assert f"unexpected {type(error).__name__}" in line
    assert "KVARN_DEBUG=1" in line


@pytest.mark.parametrize(("error", "words"), FORESEEN)
def test_errors_of_the_user_have_no_hint(
    error: BaseException,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "run", raising(error))
    line = told(error, capsys)
    assert words in line
    assert "KVARN_DEBUG" not in line


def test_debugging_shows_where_and_is_filtered_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run", raising(ValueError(EVIL)))
    monkeypatch.setenv("KVARN_DEBUG", "1")
    assert main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "in raising" in err or "in run" in err
    assert lines(err) == err
    assert err.splitlines()[-1].startswith("kvarn: unexpected ValueError")
    for off in ("0", ""):
        monkeypatch.setenv("KVARN_DEBUG", off)
        main(["doctor"])
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("where", ["command", "parser"])
def test_interrupts_are_130_and_exits_pass(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, name = (doctor, "run") if where == "command" else (cli, "build_parser")
    monkeypatch.setattr(owner, name, raising(KeyboardInterrupt()))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "\n"
    for passing in (SystemExit(7), GeneratorExit()):
        monkeypatch.setattr(owner, name, raising(passing))
        with pytest.raises(type(passing)):
            main(["doctor"])
    monkeypatch.setattr(owner, name, raising(BrokenPipeError()))
    assert main(["doctor"]) == 0


WRONG = [
    ["run", "-m", ""],
    ["run", "-m", "a\0b", "-p", "x"],
    ["run", "-f", ""],
    ["run", "-p", "\udcff"],
    ["run", "--stop", "\udcff"],
    ["run", "--ctx=--"],
    ["run", "--temp=--"],
    ["run", "-c--"],
    ["run", "--kv", ""],
    ["run", "--logit-bias", f"{2**70}+1"],
    ["run", "--seed", str(2**64)],
    ["run", "-n", "9" * 5000],
    ["chat", "--session", ""],
    ["tokenize", "\udcff"],
    ["inspect", ""],
    ["bench", "-p", "9223372036854775808"],
    ["bench", "-p", "1,,2"],
    ["pack", "export", "x", "-o", ""],
    ["pack", "rm", "a\0b"],
    ["pack", "x" * 10**6],
    [EVIL],
    ["run", f"--{EVIL}"],
    ["run", "--method", EVIL],
    *map(
        str.split,
        (
            *("dance", "run --ctx -1", "run --ctx 4G", "run --ctx x", "run --seed 1K", "run -n -2"),
            *("run --method hash --budget 5x", "run --method topk --budget 0%", "run --kv-type q3"),
            *("run --keep most", "run --keep-budget 0", "run --keep-budget 120%"),
            *("run --keep nacl --keep-random some", "run --keep nacl --keep-proxies 0"),
            *("run --draft", "run --draft ngram --draft-max 32", "run --sampler-seq kz"),
            *("bench --fill 0", "eval --length x", "eval --length 4096,", "eval --keep-budget 0%"),
            *("eval --method hash --budget lots", "run --method dance"),
        ),
    ),
]


@pytest.mark.parametrize("arguments", WRONG, ids=range(len(WRONG)))
def test_wrong_usage_is_told_in_escaped_and_bounded_words(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvarn: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith(" --help`\n")
    assert lines(captured.err) == captured.err
    assert len(captured.err.splitlines()[-1]) < 3000


def test_dashes_are_a_value_where_text_is_expected(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "-m", str(tiny_path), "-n", "1", "--temp", "0"]
    assert main([*run, "--prompt=--", "--stop=--"]) == 0
    first = capsys.readouterr().out
    assert main([*run, "-p--"]) == 0
    assert capsys.readouterr().out == first != ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_help_is_written_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--help"])
    assert stopped.value.code == 0
    stdout.flush()
    text = stdout.buffer.getvalue().decode(encoding)
    assert "N,…" in text or r"N,\u2026" in text


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose name, folder and file are as bad as can be."""
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / f"home{EVIL.replace('/', '')}"))

    def add_keys(writer: gguf.GGUFWriter) -> None:
        writer.add_name(EVIL)
        writer.add_string(f"general.{EVIL}", EVIL)
        writer.add_array(f"list.{EVIL}", [EVIL, "x"])

    path = tmp_path / f"{EVIL}.gguf"
    write_model(path, "f16", TINY, add_keys)
    return path


def test_names_of_others_reach_no_terminal(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / f"text{EVIL}"
    text.write_text("the mill by the river " * 9)
    pack = str(tmp_path / f"pack{EVIL}")
    said = ""
    for arguments, code in {
        ("inspect", hostile): 0,
        ("run", "-m", hostile, "-p", "x", "-n", "1", "-c", "999999", "--stats"): 0,
        ("run", "-m", hostile, "-p", "x", "--instruct"): 1,
        ("bench", "-m", hostile, "-p", "2", "-n", "1", "-r", "1"): 0,
        ("bench", "-m", hostile, "-p", "2", "-n", "0", "-r", "1", "-o", "csv"): 0,
        ("perplexity", "-m", hostile, "-f", text, "-c", "16", "--json"): 0,
        ("tokenize", "-m", hostile, EVIL): 0,
        ("pack", "build", "-m", hostile, "-f", text, "-o", "named"): 0,
        ("pack", "ls"): 0,
        ("pack", "ls", "--json"): 0,
        ("pack", "build", "-m", hostile, "-f", text, "-o", pack): 0,
        ("pack", "info", pack): 0,
        ("pack", "info", pack, "--json"): 0,
        ("pack", "verify", pack): 0,
        ("run", "--pack", pack, "-p", "x", "-n", "1"): 0,
        ("pack", "rm", f"{pack}x"): 1,
        ("quantize", hostile, f"{hostile}.q8.gguf", "--type", "q8_0"): 0,
        ("hf-pull", EVIL): 1,
    }.items():
        assert main([str(word) for word in arguments]) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        if arguments[0] != "run":  # what a model generates passes to a pipe as it is
            assert lines(captured.out) == captured.out, arguments
        assert lines(captured.err) == captured.err, arguments
        assert "\nkvarn: forged" not in captured.out + captured.err
        if "--json" in arguments:
            json.loads(captured.out)
            assert captured.out.isascii()
        said += captured.out + captured.err
    assert r"\x1b]0;title\x07 \x9b2J\nkvarn: forged\r\u202e" in said


def test_an_interrupt_while_it_is_imported_is_130() -> None:
    code = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'kvarn.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('kvarn', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"")
