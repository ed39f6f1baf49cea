"""What someone meets who uses kvarn for the first time, on a terminal and off it."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.machine.completion import SHELLS
from kvarn.commands.parsing.rare import RARE
from kvarn.runtime.home import remember_model
from lab.peers.model import write_model

from ..conftest import TINY
from .ctrl_c import said_on_ctrl_c

ONE = ["-n", "3", "--temp", "0", "-c", "256"]


def on_terminal(*words: str) -> str:
    """What a terminal shows of a command whose streams are all it."""
    terminal, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "kvarn", *words], stdin=child, stdout=child, stderr=child
    ) as process:
        os.close(child)
        seen = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # how Linux says that nobody has the other side any more
                break
            if not part:
                break
            seen += part
        assert process.wait(60) == 0, seen
    os.close(terminal)
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_shows_the_prompt_and_then_the_text(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(tiny_path), *ONE]
    assert main([*run, "-p", "The mill"]) == 0
    text = capsys.readouterr().out
    assert not text.startswith("The mill")
    shown = on_terminal(*run, "-p", "The mill").splitlines()
    assert any(line.startswith("The mill") for line in shown)
    assert shown[-1].startswith("kvarn: stopped after 3 tokens")
    assert "The mill" not in on_terminal(*run, "-p", "The mill", "--no-display-prompt")
    long = on_terminal(*run, "-c", "2000", "-p", "a" * 500)
    assert re.search(r"^… a{400}", long, re.MULTILINE)


def test_the_default_model_is_told_for_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = on_terminal("run", "-p", "x", *ONE)
    assert "a small base model (3.7M parameters)" in shown
    assert "kvarn chat -hf" in shown
    assert main(["run", "-p", "x", *ONE]) == 0
    assert "base model" not in capsys.readouterr().err


def test_a_model_with_a_chat_template_may_expect_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.gguf"
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    write_model(path, "f16", TINY, lambda writer: writer.add_chat_template(turns))
    run = ["run", "-m", str(path), "-p", "x", *ONE]
    assert main(run) == 0
    assert "--instruct sends the prompt as one" in capsys.readouterr().err
    stats = tmp_path / "stats.json"
    n_read = []
    for more in ([], ["-sys", "Be kind"]):
        assert main([*run, "--instruct", *more, "--stats-json", str(stats)]) == 0
        assert "--instruct" not in capsys.readouterr().err
        n_read.append(json.loads(stats.read_text())["prefilled_tokens"])
    assert n_read[0] < n_read[1]


def test_llama_cpps_options_do_what_ours_do(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    kvarns = ["-c", "1024", "-n", "4", "--seed", "7", "--kv-type", "q8_0/q4_0", "-p", "the mill"]
    llamas = ["--ctx-size", "1K", "--n-predict", "4", "-s", "7", "-ctk", "q8_0", "-ctv", "q4_0"]
    llamas += ["-ngl", "0", "-fa", "on", "--prompt", "the mill"]
    seen = []
    for words in (["-m", str(tiny_path), *kvarns], [*llamas, str(tiny_path)]):
        assert main(["run", *words, "--stats-json", str(stats)]) == 0
        figures = json.loads(stats.read_text())
        seen.append((capsys.readouterr().out, figures["n_ctx"], figures["kv_bytes"]))
    assert seen[0] == seen[1]
    assert main(["run", str(tiny_path), "-c", "0", "-n", "1", "-p", "x"]) == 0


def test_a_folder_of_kv_says_after_ctrl_c_what_it_keeps(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kv"
    err = said_on_ctrl_c(tiny_path, "--kv", str(folder))
    found = re.search(rb"keeps ([\d,]+) tokens", err)
    assert found, err
    assert main(["pack", "info", f"{folder}/", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_tokens"] == int(found[1].replace(b",", b""))


def test_ls_tells_models_and_packs(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVARN_HOME", str(tmp_path))
    assert main(["ls"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\*  ships with kvarn .*kvarn-mini.gguf$", out, re.MULTILINE)
    assert "no packs yet" in out
    remember_model(tiny_path, "converted")
    (tmp_path / "t.txt").write_text("the mill")
    assert main(["pack", "build", "-f", str(tmp_path / "t.txt"), "-o", "mill"]) == 0
    capsys.readouterr()
    assert main(["ls"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^\*  converted .*{re.escape(str(tiny_path))}$", out, re.MULTILINE)
    assert re.search(r"^mill  pack ", out, re.MULTILINE)
    assert main(["ls", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert [model["default"] for model in known["models"]] == [True, False]
    assert len(known["packs"]) == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    rare = () if shell == "tcsh" else (*RARE, "--prefill-rerank", "--rerank")
    for word in ("hf-pull", "ctx-size", "hashevict", *rare):
        assert word in script
    if shell == "bash":
        completed = (
            f"{script}\nCOMP_WORDS=(kvarn pe); COMP_CWORD=1; _shtab_kvarn; echo ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(
            ["bash", "-c", completed], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.split() == ["perplexity"], done.stderr
