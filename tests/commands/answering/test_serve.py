"""`kvarn serve`: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import kvarn
from kvarn.cli import build_parser, main
from kvarn.commands.answering.serve import settings_from
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.sampling import Sampler

from ...models.adapters import random_pairs, write_adapter

MINI = str(default_model_path())


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address, while the block runs; ends in order."""
    command = [sys.executable, "-m", "kvarn", "serve", "--port", "0", "-t", "1", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = None
    while address is None:
        line = process.stderr.readline()
        assert line, "it ended"
        address = re.search(r"http://\S+:\d+", line)
    try:
        yield process, address[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def asked(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


def ready(address: str) -> None:
    began = time.monotonic()
    while time.monotonic() < began + 60:
        try:
            asked(f"{address}/health")
            return
        except OSError:  # 503
            time.sleep(0.05)
    raise AssertionError("it does not become ready")


def test_answers_are_those_of_the_model_with_its_adapter(tiny_path: Path, tmp_path: Path) -> None:
    with open_gguf(tiny_path) as file:
        shapes = {n: t.shape for n, t in file.tensors.items() if n.endswith("ffn_down.weight")}
    adapter = write_adapter(tmp_path / "a.gguf", "llama", random_pairs(shapes, 4, size=20.0))
    body = {"prompt": "Words", "max_tokens": 12, "temperature": 0}
    texts = []
    for lora in ((), ("--lora", f"{adapter}:0.5")):
        with served(str(tiny_path), "--ctx", "64", "--cache-size", "0", *lora) as (_, address):
            ready(address)
            texts.append(asked(f"{address}/v1/completions", body)["choices"][0]["text"])
    wanted = [
        "".join(kvarn.load(tiny_path, lora=lora).context(64).generate("Words", 12, Sampler(temp=0)))
        for lora in ((), f"{adapter}:0.5")
    ]
    assert texts == wanted and texts[0] != texts[1]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_server_answers_and_ends_in_order(stop: signal.Signals) -> None:
    with served("--ctx", "1K", "--method", "topk", "--budget", "5%") as (process, address):
        ready(address)
        body = {"prompt": "Once", "max_tokens": 4, "temperature": 0}
        answer = asked(f"{address}/v1/completions", body)
        assert answer["usage"]["completion_tokens"] == 4
        process.send_signal(stop)
        assert process.wait(60) == 0


def test_a_model_that_drafts_changes_no_text(tiny_path: Path) -> None:
    """Of two answers at a time. It is named as for `kvarn run`."""
    prompts = ["Words", "Other words " * 9]
    words = "--ctx", "300", "--cache-size", "0", "-md", str(tiny_path)
    with served(str(tiny_path), *words) as (_, address), ThreadPoolExecutor(2) as pool:
        ready(address)
        body = {"max_tokens": 30, "temperature": 0}
        asking = [
            pool.submit(asked, f"{address}/v1/completions", {"prompt": prompt, **body})
            for prompt in prompts
        ]
        texts = [one.result()["choices"][0]["text"] for one in asking]
    context = kvarn.load(tiny_path).context
    assert texts == ["".join(context(300).generate(p, 30, Sampler(temp=0))) for p in prompts]


def test_packs_that_a_server_has_open_can_be_asked_beside_it(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `kvarn ask --packs`, which a server does not do: any number of processes may read."""
    monkeypatch.setenv("KVARN_HOME", str(tmp_path))
    ask = [sys.executable, "-m", "kvarn", "ask", "-m", str(tiny_path), "-t", "1", "-n", "4"]
    ask += ["--json", "--packs", str(tmp_path / "packs"), "Where is the mill?"]

    def answers() -> Any:
        run = subprocess.run(ask, check=False, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)["answers"]

    with served(str(tiny_path), "--ctx", "300") as (_, address):
        ready(address)
        for name in ("mill", "hill"):
            asked(f"{address}/packs", {"name": name, "text": f"A {name}. " * 9, "stream": False})
            body = {"prompt": " Who", "pack": name, "max_tokens": 2, "temperature": 0}
            assert asked(f"{address}/v1/completions", body)["choices"]
        beside = answers()
    assert beside == answers() and len(beside) > 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["no.gguf"], "no.gguf"),
        ([MINI, "-c", "100M"], "a context of 104,857,600 tokens needs"),
        ([MINI, "--draft", "other.gguf"], "the draft other.gguf has another vocabulary than "),
        ([MINI, "--draft", "no.gguf"], ", neither ngram nor a model: "),
        ([MINI, "--lora", "other.gguf"], "other.gguf: it is no low-rank adapter"),
    ],
    ids=["a broken file", "no room", "a draft of other tokens", "a broken draft", "no adapter"],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(
    words: list[str], expected: str, tiny_path: Path, tmp_path: Path
) -> None:
    """Without a line before it that says that the server listens."""
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    (tmp_path / "other.gguf").symlink_to(tiny_path)
    command = [sys.executable, "-m", "kvarn", "serve", *words, "--port", "0", "--cache-size", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    [line] = said.splitlines()
    assert expected in line


def settings(*words: str) -> Any:
    parser = build_parser("serve", whole=False)
    return settings_from(parser.parse_args(["serve", *words]))


def test_options_become_settings(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n\n two \n")
    given = settings(
        *"--host 0.0.0.0 --port 99 --ctx 128K -np 8 --cache-size 1.5G --log json".split(),
        *"--draft ngram --draft-max 8 --draft-min-match 3".split(),
        *("--api-key-file", str(tmp_path / "keys"), "--kv-type", "q8_0/q4_0", "--budget", "2%"),
    )
    assert (given.host, given.port, given.n_ctx, given.parallel) == ("0.0.0.0", 99, 131072, 8)
    assert (given.cache_bytes, given.log, given.keys) == (3 << 29, "json", ("one", "two"))
    words = {"method": "auto", "budget": "2%", "kv_type": "q8_0/q4_0"}
    assert given.words == {**words, "draft": "ngram", "draft_max": 8, "draft_min_match": 3}
    assert given.cache_path == Path(os.environ["KVARN_HOME"]) / "serve"


def test_a_model_is_named_by_its_link(tmp_path: Path) -> None:
    """The hub's cache keeps files under their digests, and links to them under their names."""
    (tmp_path / "b179c952").write_bytes(b"GGUF")
    (tmp_path / "small.gguf").symlink_to("b179c952")
    assert settings(str(tmp_path / "small.gguf")).model == tmp_path / "small.gguf"


def test_a_cache_takes_a_tenth_of_the_disk_at_most() -> None:
    given = settings()
    assert 0 < given.cache_bytes <= 32 << 30
    assert given.words == {"method": "auto"}
    assert settings("--cache-size", "0").cache_bytes == 0


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("--host 0.0.0.0", "--api-key", 2),
        ("--api-key k --no-auth", "not both", 2),
        ("--cache-size x", "bytes", 2),
        ("--port 65536", "65535", 2),
        ("--parallel 0", "whole number", 2),
        ("--method full --budget 5%", "--budget has no effect", 2),
        ("--kv-on gpu", "--device cuda", 2),
        ("gone.gguf", "no such file", 1),
        ("--draft gone", "--draft is 'gone', neither ngram nor a model: gone: no such file", 1),
        ("--draft=", "--draft is empty, expected ngram or the file of a model", 2),
        ("--draft-max 8", "--draft-max 8 has no effect without --draft", 2),
        ("--draft ngram --draft-p-min 0.5", "--draft-p-min 0.5 has no effect without --draft F", 2),
        ("--draft ngram --draft-max 32", "--draft-max: expected a whole number from 1 to 31", 2),
        ("--prot 1", "did you mean --port", 2),
        ("--host 192.0.2.1 --api-key k", "choose another --host", 1),
        ("--host= --no-auth", "--host is empty, expected a name or an address", 2),
        ("--host a..b --no-auth", "choose another --host", 1),
    ],
)
def test_what_is_wrong_is_one_line(
    line: str, words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        result = main(["serve", *line.split()])
    except SystemExit as stopped:
        result = stopped.code  # type: ignore[assignment]
    assert result == code
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_the_fault_of_the_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["serve", "--port", str(other.getsockname()[1])]) == 1
    assert "in use; choose another --port" in capsys.readouterr().err


def test_a_missing_package_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 1
    assert "pip install" in capsys.readouterr().err
