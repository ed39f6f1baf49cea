"""KV caches that outlast a process: `--kv`, `--session`, and chats that follow a pack."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from kvarn.runtime.home import pack_path, session_path
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk

from ..pack_runner import TEXT, Kvarn, ids_of


@pytest.mark.parametrize("option", [[], ["--kv-type", "f16"]])
def test_a_refused_kv_folder_stays_as_it_is(run: Kvarn, tmp_path: Path, option: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear reader")
    (tmp_path / "file").write_text("")
    for folder in ("mine", "file", "file/below", "new/" + "x" * 300):
        kv = ["--kv", str(tmp_path / folder)]
        code, _, err = run("run", *run.model, *kv, *option, "-p", "x", "-n", "1")
        assert code == 1
        assert len(err.splitlines()) == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    assert not (tmp_path / "new").exists()


def test_kv_in_a_folder_reads_a_prompt_once(run: Kvarn, tmp_path: Path) -> None:
    stats, folder = tmp_path / "stats.json", ["--kv", str(tmp_path / "kv")]
    tail = ["-n", "4", "--temp", "0", "--stats-json", str(stats)]
    prompt = "One two three four five six"
    first = run("run", *run.model, *folder, "-p", prompt, *tail)[1]
    assert json.loads(stats.read_text())["prefilled_tokens"] > 6
    assert run("run", *run.model, *folder, "-p", prompt, *tail)[1] == first
    # The last token, for its logits: a token was generated after it.
    assert json.loads(stats.read_text())["prefilled_tokens"] == 1
    assert run("run", *run.model, *folder, "-p", prompt + " seven", *tail)[0] == 0
    assert 0 < json.loads(stats.read_text())["prefilled_tokens"] < 7
    bench = ["bench", *run.model, "-p", "4", "-n", "2", "-r", "1", "-o", "json"]
    assert len(json.loads(run(*bench, "--kv", str(tmp_path / "bench"))[1])) == 2
    assert list((tmp_path / "bench").iterdir()) == []


def test_a_chat_follows_a_pack(run: Kvarn, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run.build("mill")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n/stats\n/reset\nHello\n/stats\n"))
    code, out, err = run("chat", "--pack", "mill", "-n", "4", "--temp", "0", "-c", "4000")
    assert code == 0, err
    reads = re.findall(r"last turn: (\d+) tokens kept, (\d+) read", err)
    assert len(reads) == 2
    assert 0 < int(reads[0][1]) < 60  # the message, not the pack
    held = re.findall(r"(\d+) of 4000 tokens in the context", err)
    assert int(held[0]) == int(held[1]) > len(ids_of(tiny, TEXT))
    half = len(out) // 2
    assert out[:half] == out[half:]


def test_a_session_without_a_turn_leaves_nothing(
    run: Kvarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has begun stays, whatever its next process does."""
    words = ["chat", "--session", "s", *run.model, "-n", "4", "-c", "4000"]
    turns = {"": False, "/help\n/nonsense\n": False, "Hello\n": True, "/stats\n": True}
    for lines, is_kept in turns.items():
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        run(*words)
        assert session_path("s").exists() == is_kept
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    code, _, err = run("chat", "--session", "t", *run.model, "-c", "1")
    assert code == 1 and not session_path("t").exists(), err


def test_a_session_goes_on_in_the_next_process(
    run: Kvarn, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.build("mill")

    def chat(text: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return run("chat", "-n", "4", "--temp", "0", "-c", "4000", *arguments)

    together = chat("Hello\nAnd you?\n", *run.model)
    first, second = (chat(f"{t}\n", *run.model, "--session", "s") for t in ("Hello", "And you?"))
    assert first[1] + second[1] == together[1]
    assert "2 messages so far" in second[2]
    _, _, err = chat("More\n/stats\n", "--session", "s")
    assert "using the model of the pack" in err
    assert "last turn: 0 tokens kept" not in err
    after = chat("Hello\nAnd you?\n", "--pack", "mill")
    first, second = (
        chat("Hello\n", "--session", "t", "--pack", "mill"),
        chat("And you?\n", "--session", "t"),
    )
    assert first[1] + second[1] == after[1]
    assert re.search(r"^t +session ", run("pack", "ls")[1], re.MULTILINE)
    assert str(session_path("t")) in run("pack", "info", "t")[1]
    assert run("pack", "verify", "t")[0] == 0
    code, _, err = run("pack", "rm", "s")
    assert code == 1
    assert f"s is a session: `kvarn pack rm {session_path('s')}` removes it" in err
    assert run("pack", "rm", str(session_path("s")))[0] == 0
    assert not session_path("s").exists()
    code, _, err = run("pack", "rm", "mill")
    assert code == 1
    assert f"{session_path('t')} begins with its segments" in err
    code, _, err = chat("x\n", "--session", "t", "--pack", "mill")
    assert code == 1
    assert "has begun already" in err
    # As after a crash before the first turn: the pack is not taken for a conversation.
    with tiny.context(4000, store=Disk(session_path("u"), parent=pack_path("mill"))):
        pass
    assert chat("Hello\n", "--session", "u")[1] == first[1]
    (session_path("t") / "conversation.json").write_text("[1]")
    assert "not a saved conversation" in chat("x\n", "--session", "t")[2]
