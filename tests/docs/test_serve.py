"""What docs/guides/serve.md and agents.md say, typed as it is written, but for the port: `kvarn
serve` and its options, requests, and the settings of other programs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvarn.cli import build_parser
from kvarn.commands import COMMANDS

from ..runtime.documents import made
from .document_commands import ROOT, parts
from .document_server import ANSWER, Served, served, write_model
from .document_typed import ADDRESS, SERVES

BLOCKS = [
    block
    for name in ("serve.md", "agents.md")
    for block in parts((ROOT / "docs" / "guides" / name).read_text(encoding="utf-8"))[0]
]
STARTS = [
    line for _, text in BLOCKS for line in text.splitlines() if line.startswith(SERVES)
]  # fmt: skip
REQUESTS = [text for _, text in BLOCKS if text.startswith("curl ")]
CHAT = "/v1/chat/completions"
PATHS = {"claude": "/v1/messages", "codex": "/v1/responses"}
NPM = {"qwen": "@qwen-code/qwen-code@0.15"}
"""Programs that npm installs for the test where they are missing."""


def blocks_with(program: str) -> str:
    """The text of all blocks of code that call a program."""
    chosen = [text for _, text in BLOCKS if f"{program} " in text]
    assert chosen
    return "\n".join(chosen)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    """Where a reader types."""
    shutil.copy(model, tmp_path / "model.gguf")
    (tmp_path / "keys.txt").write_text("secret\n")
    (tmp_path / "a.py").write_text("print(6 * 7)\n")
    (tmp_path / "report.pdf").write_bytes(made.pdf("The mill stood", "by the river."))
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    with served(folder, ["serve", "model.gguf", "-c", "128K"]) as running:
        yield running


def typed(text: str, server: Served) -> str:
    """What a shell prints, which ends at the first error."""
    curl = 'curl() { command curl --fail-with-body "$@"; }\n'
    written = curl + text.replace(f"http://{ADDRESS}", server.url)
    done = subprocess.run(
        ["bash", "-eu", "-c", written],
        cwd=server.folder, env=os.environ | {"HOME": str(server.folder)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}\n{server.log()}"
    return done.stdout


@pytest.mark.parametrize("command", STARTS)
def test_servers_start_and_end(command: str, folder: Path) -> None:
    port = ["--port", "8080"]
    words = shlex.split(command.partition("  ")[0])[1:]
    build_parser(*COMMANDS).parse_args(words)
    if port[0] in words:
        assert words[-2:] == port, "the test puts another port in place of the last option"
        words = words[:-2]
    with served(folder, words):
        pass


def test_requests_are_answered(server: Served) -> None:
    assert len(REQUESTS) >= 5
    for text in REQUESTS:
        answer = typed(text, server)
        assert '"error"' not in answer
        if "kestrel" in text:
            assert "mill" in answer
        if '"pack": "mill"' in text:
            assert '"n_tokens"' in answer and ANSWER in answer
            assert answer.endswith('{"packs":[]}')


def test_the_client_of_python_answers(server: Served) -> None:
    (text,) = (text for language, text in BLOCKS if language == "python")
    script = text.replace(f"http://{ADDRESS}", server.url)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ANSWER), done.stderr


def test_settings_of_editors_name_the_server() -> None:
    continues = yaml.safe_load(next(text for language, text in BLOCKS if language == "yaml"))
    zed = json.loads(next(text for language, text in BLOCKS if language == "json"))
    (provider,) = zed["language_models"]["openai_compatible"].values()
    assert continues["models"][0]["apiBase"] == provider["api_url"] == f"http://{ADDRESS}/v1"
    assert continues["models"][0]["model"] == provider["available_models"][0]["name"] == "default"


def installed(program: str, folder: Path) -> str:
    """The folder of a program that npm installs; skips where that is not possible."""
    if program not in NPM or shutil.which("npm") is None:
        pytest.skip(f"{program} is not on the PATH")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), NPM[program]]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {NPM[program]} within 240 seconds")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        pytest.skip(f"npm does not install {NPM[program]}: {lines[:1]}")
    return str(folder / "node_modules" / ".bin")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["llm", "aider", "qwen", "claude", "codex", "opencode"])
def test_programs_are_answered(
    program: str, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as its section says."""
    if shutil.which(program) is None:
        place = installed(program, tmp_path / "npm")
        monkeypatch.setenv("PATH", place, prepend=os.pathsep)
    answer = typed(blocks_with(program), server)
    assert ANSWER in answer
    statuses = server.statuses(PATHS.get(program, CHAT))
    # A request beside the answer, for a title, may be cut off when the program ends.
    assert "200" in statuses and set(statuses) <= {"200", "499"}
