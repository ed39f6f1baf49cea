"""The engine's process: killed, told to end, unable to start, sent what is no message."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.calls import RequestRefused
from kvarn.runtime.serving.client import COMMAND, EngineClient
from kvarn.runtime.serving.flags import Flags
from kvarn.runtime.serving.frames import LENGTH, Connection, encoded
from kvarn.runtime.serving.prompt import Text
from kvarn.runtime.serving.protocol import (
    Done,
    FromEngine,
    Generate,
    Loading,
    Pieces,
    Ready,
    Refused,
)

from .live import GREEDY, Answer, Live, live, settled, start_of

ENDLESS = {"sampling": GREEDY, "ignore_eos": True}


def test_a_killed_engine_fails_its_requests_and_starts_again(engine: Live) -> None:
    async def kill() -> tuple[float, str]:
        task = asyncio.create_task(engine.answer("Once", **ENDLESS))
        await asyncio.sleep(0.3)
        os.kill(engine.client.pid, signal.SIGKILL)
        with pytest.raises(RequestRefused, match="signal 9") as error:
            await task
        assert error.value.refused.kind == "engine"
        began = time.perf_counter()
        while engine.client.state != "ready":
            with pytest.raises(RequestRefused, match="again"):
                await engine.answer("Once")
            await asyncio.sleep(0.05)
        seconds = time.perf_counter() - began
        return seconds, (await engine.answer("Once", sampling=GREEDY, max_tokens=8)).text

    before = engine.run(engine.answer("Once", sampling=GREEDY, max_tokens=8)).text
    restarts = engine.client.restarts
    for i in range(2):
        seconds, text = engine.run(kill())
        assert text == before
        assert seconds < 30
        assert engine.client.restarts == restarts + i + 1


def test_an_engine_that_is_told_to_end_lets_streams_end(tmp_path: Path) -> None:
    with live(start_of(tmp_path, n_ctx=32_768)) as running:  # more than a second generates

        async def stop() -> tuple[Answer, Answer]:
            short = asyncio.create_task(running.answer("Once", sampling=GREEDY, max_tokens=20))
            endless = asyncio.create_task(running.answer("Once", **ENDLESS))
            await asyncio.sleep(0.2)
            pid = running.client.pid
            await running.client.stop(1.0)
            assert not Path(f"/proc/{pid}").exists()
            with pytest.raises(RequestRefused, match="ending"):
                await running.answer("Twice")
            return await short, await endless

        short, endless = running.run(stop())
    assert short.done is not None
    assert endless.done is not None
    assert (short.done.finish, endless.done.finish) == ("length", "cancelled")


def test_a_model_that_was_damaged_since_is_named(tmp_path: Path) -> None:
    """Its file is replaced while an engine runs, which then dies."""
    model = tmp_path / "model.gguf"
    shutil.copy(default_model_path(), model)

    async def told(running: Live) -> str:
        (tmp_path / "short").write_bytes(b"GGUF")
        (tmp_path / "short").replace(model)
        os.kill(running.client.pid, signal.SIGKILL)
        while running.client.state != "loading" or "last time" not in running.client.step:
            await asyncio.sleep(0.01)
        with pytest.raises(RequestRefused) as error:
            await running.answer("Once")
        return error.value.refused.message

    with live(start_of(tmp_path / "cache", model=str(model))) as running:
        message = running.run(told(running))
    assert "the model is loading (" in message and "last time it failed: " in message, message


def test_a_grammar_that_grows_too_complex_is_the_requests_fault(engine: Live) -> None:
    words = " | ".join(f'"w{i}"' for i in range(5000))
    constraint = Form("gbnf", f"root ::= {words}")
    with pytest.raises(RequestRefused, match="max is 2000") as error:
        engine.run(engine.answer("Once", constraint=constraint, max_tokens=8))
    assert error.value.refused.kind == "invalid"


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    failed: list[int] = []

    async def start() -> None:
        path = str(tmp_path / "no.gguf")
        client = EngineClient(
            start_of(tmp_path, model=path), print, on_failure=lambda: failed.append(1)
        )
        await client.open()
        await settled(client)
        assert client.state == "stopped" and "no.gguf" in client.reason
        await client.stop()

    asyncio.run(start())
    assert failed == [1]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_room_that_cannot_be_is_refused_as_run_refuses_it(
    tmp_path: Path, cache_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-p", "x", "-m", str(default_model_path()), "-c", "2000M"]) == 1
    expected = capsys.readouterr().err.removeprefix("kvarn: ").partition(" and ")[0]
    assert "a context of 2,097,152,000 tokens needs" in expected
    asked = start_of(tmp_path, n_ctx=2000 << 20, cache_bytes=cache_bytes)
    with live(asked, is_ready=False) as engine:
        engine.run(settled(engine.client))
        assert expected in engine.client.reason


def test_room_beyond_the_training_length_is_told(tmp_path: Path) -> None:
    n_train = load(threads=1).config.n_ctx_train
    for n_ctx, n_lines in ((n_train + 1, 1), (n_train, 0)):
        with live(start_of(tmp_path, n_ctx=n_ctx)) as engine:
            told = [line for line in engine.client.notices if "was trained on" in line]
            assert len(told) == n_lines


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[tuple[Connection[FromEngine], socket.socket, int, Path]]:
    """An engine that is ready, at the end of a bare socket."""
    here, other = socket.socketpair()
    process = subprocess.Popen([*COMMAND, str(other.fileno())], pass_fds=(other.fileno(),))
    other.close()
    here.settimeout(60)
    connection = Connection[FromEngine](here, FromEngine)
    flags, path = Flags.create()
    connection.send(start_of(tmp_path, cancel_path=str(path)))
    while not isinstance(message := connection.receive(), Ready):
        assert isinstance(message, Loading)
    yield connection, here, process.pid, path
    here.close()
    assert process.wait(30) == 0
    path.unlink(missing_ok=True)
    assert not flags.is_ended(0)


def next_of(connection: Connection[FromEngine], kind: type) -> object:
    while not isinstance(message := connection.receive(), kind):
        assert message is not None
    return message


def test_a_malformed_message_is_refused_and_others_go_on(
    raw: tuple[Connection[FromEngine], socket.socket, int, Path],
) -> None:
    connection, here, *_ = raw
    for data in (b"\xc1", b"\x81\xa4type\xa4What", b"\x93\x01\x02\x03", os.urandom(64)):
        here.sendall(LENGTH.pack(len(data)) + data)
    wrong = encoded(Generate(7, 0, Text("a"), max_tokens="x"))  # type: ignore[arg-type]
    here.sendall(wrong)
    refused = next_of(connection, Refused)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.kind) == (7, "invalid")
    connection.send(Generate(8, 9999, Text("a")))
    refused = next_of(connection, Refused)
    assert isinstance(refused, Refused)
    assert refused.id == 8
    connection.send(Generate(9, 0, Text("a"), max_tokens=2))
    done = next_of(connection, Done)
    assert isinstance(done, Done)
    assert done.id == 9


def test_an_engine_whose_server_is_gone_leaves_no_file(
    raw: tuple[Connection[FromEngine], socket.socket, int, Path],
) -> None:
    _, here, _, path = raw
    assert path.exists()
    here.shutdown(socket.SHUT_RDWR)
    began = time.monotonic()
    while path.exists():
        assert time.monotonic() < began + 30
        time.sleep(0.01)


def test_sigterm_ends_an_engine_in_order(
    raw: tuple[Connection[FromEngine], socket.socket, int, Path],
) -> None:
    connection, _, pid, path = raw
    connection.send(Generate(1, 0, Text("Once"), max_tokens=10))
    next_of(connection, Pieces)
    os.kill(pid, signal.SIGTERM)
    done = next_of(connection, Done)
    assert isinstance(done, Done)
    assert done.finish == "length"
    assert path.exists(), "the next engine of the same server maps it, too"


def test_the_server_process_imports_nothing_that_computes() -> None:
    code = (
        "import sys, kvarn.runtime.serving.client, kvarn.commands.answering.serve as _;"
        "import kvarn.serve.running;"
        "print(sorted({'numpy', 'numba', 'kvarn.jit', 'kvarn.ops'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([COMMAND[0], "-c", code], text=True).strip() == "[]"
