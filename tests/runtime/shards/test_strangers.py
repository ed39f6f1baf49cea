"""A shard outlives strangers, slow heads, writers and a reluctant system, in the tests' process."""

import errno
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.shards import links, serving
from kvarn.runtime.shards import shard as shard_module
from kvarn.runtime.shards.frames import FrameError, Kind, Message, receive, send, text_array
from kvarn.runtime.shards.greeting import PROTOCOL, greet
from kvarn.runtime.shards.serving import ShardServer
from kvarn.runtime.shards.shard import Shard

from ..reading import SHAPE, ids_of
from .processes import shards

WAIT = 20.0
QUERIES = np.zeros((64, SHAPE.n_heads, SHAPE.head_dim), np.float32)
SOUND = Kind.ROWS, [np.array([0, 1, 0], np.float64), QUERIES]


@contextmanager
def served(pack: Path, lines: list[str], refusals: int = 0) -> Iterator[ShardServer]:
    """A server of two segments, whose system refuses so many connections first."""
    server = ShardServer(Shard(pack, 0, 2), "127.0.0.1", 0, "", lines.append)
    server._socket = Refusing(server._socket, refusals)  # type: ignore[assignment]
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(WAIT)
        until = time.monotonic() + WAIT
        while (server._heads or server._strangers) and time.monotonic() < until:
            time.sleep(0.01)  # until all has been said of them
    assert not thread.is_alive()


class Refusing:
    """A socket that listens, for which there are no descriptors at first."""

    def __init__(self, listening: socket.socket, refusals: int) -> None:
        self._listening, self._refusals = listening, refusals

    def accept(self) -> Any:
        if self._refusals:
            self._refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listening, name)


def asked(server: ShardServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), WAIT)
    greet(connection, "")
    return connection


@pytest.mark.parametrize("said", ['"nonce": "\\ud800"', '"nonce": "n", "proof": "\\ud800"'])
def test_texts_that_are_no_utf_8_are_a_wrong_token(pack: Path, said: str) -> None:
    text = f'{{"kvarn": "{kvarn.__version__}", "protocol": {PROTOCOL}, {said}}}'
    with served(pack, lines := []) as server:
        with socket.create_connection(("127.0.0.1", server.port), WAIT) as head:
            receive(head)
            send(head, Kind.PROOF, [text_array(text)])
            answer: Message = receive(head)
        assert answer.kind is Kind.ERROR
        asked(server).close()
    assert ["the token is wrong" in line for line in lines] == [True]


def test_a_shard_whose_nonce_is_no_utf_8_is_refused() -> None:
    text = f'{{"kvarn": "{kvarn.__version__}", "protocol": {PROTOCOL}, "nonce": "\\ud800"}}'
    shard, head = socket.socketpair()
    with shard, head:
        send(shard, Kind.HELLO, [text_array(text)])
        send(shard, Kind.FACTS, [text_array("{}")])
        with pytest.raises(FrameError, match="does not know the token"):
            greet(head, "secret")


def test_a_system_that_refuses_a_connection_does_not_end_a_shard(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PAUSE", 0.01)
    with served(pack, lines := [], refusals=2) as server:
        asked(server).close()
    assert lines == ["a head could not connect: Too many open files"] * 2


def test_a_question_that_never_ends_is_given_up(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes come one by one, none of them late."""
    monkeypatch.setattr(serving, "_REST_SECONDS", 0.4)
    with served(pack, lines := []) as server, asked(server) as head:
        until = time.monotonic() + WAIT
        with suppress(ConnectionError):
            head.sendall(b"kvsh\x06\x01\0\0" + (1 << 20).to_bytes(4, "little"))
            head.sendall(bytes([0, 1, 0, 0]) + (1 << 20).to_bytes(4, "little") + bytes(12))
            while not lines and time.monotonic() < until:
                head.sendall(b"x")
                time.sleep(0.02)
    assert lines == ["refused 127.0.0.1: it sends or takes too slowly"]


def test_a_head_that_is_busy_with_its_own_tokens_gets_its_answer(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has no room in what the system holds for the head."""
    monkeypatch.setattr(links, "_ALIVE_SECONDS", 0.5)
    with served(pack, []) as server, socket.socket() as head:
        head.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        head.settimeout(WAIT)
        head.connect(("127.0.0.1", server.port))
        greet(head, "")
        send(head, *SOUND)
        time.sleep(2.5)
        assert [array.shape[:2] for array in receive(head).arrays] == [QUERIES.shape[:2]] * 2


def test_a_pack_that_grows_while_it_is_opened(
    model: kvarn.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, path = ids_of(model, 5200), tmp_path / "pack"
    build_pack(model, path, ids[:2100], len(ids))
    before = Shard(path)
    plain = shard_module.DiskStore

    def opened(folder: Any) -> Any:
        store = plain(folder)
        with model.context(len(ids), store=kvarn.Disk(path)) as context:
            context.prefill(ids[len(context.tokens) :])
        return store

    monkeypatch.setattr(shard_module, "DiskStore", opened)
    grown = Shard(path)
    assert grown.facts == before.facts and grown.facts.stop == 2048
    question = Message.of(*SOUND)
    assert grown.answer(question) == before.answer(question)


def test_a_pack_that_is_replaced_beneath_a_shard(
    model: kvarn.Model, pack: Path, tmp_path: Path
) -> None:
    """It answers for the pack that it has opened, which it names; heads of the other are refused.
    Questions come before and after, for columns and segments not touched yet."""
    path, rng = tmp_path / "pack", np.random.default_rng(0)
    shutil.copytree(pack, path)
    shard, other = Shard(path, 0, 4), Shard(pack, 0, 4)
    build_pack(model, tmp_path / "new", ids_of(model, 5200, seed=3), 5200)
    q = rng.standard_normal((1, SHAPE.n_heads, SHAPE.head_dim)).astype(np.float32)
    signatures = rng.integers(0, 1 << 32, (SHAPE.n_kv_heads, 2), np.uint64)
    name = text_array("simhash-32-20240517")
    for layer in range(SHAPE.n_layers):
        numbers = np.array([layer]), np.array([0, 4096, 100])
        for kind, arrays in (
            (Kind.ROWS, [np.array([layer, 1, 0], np.float64), q]),
            (Kind.NEAREST, [*numbers, signatures, name]),
            (Kind.LARGEST, [*numbers, q]),
        ):
            question = Message.of(kind, arrays)
            assert shard.answer(question) == other.answer(question)
        if not layer:
            shutil.rmtree(path)
            (tmp_path / "new").rename(path)
    assert shard.facts == other.facts != Shard(path, 0, 4).facts


def test_heads_that_ask_at_the_same_time(pack: Path) -> None:
    """The process of a shard with one thread computes where it is asked, for one at a time."""
    rng, shape = np.random.default_rng(0), (1, SHAPE.n_heads, SHAPE.head_dim)
    one, numbers = Shard(pack, 0, 4), (np.array([0]), np.array([8, 4096, 100]))
    queries = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    expected = [one.answer(Message.of(Kind.LARGEST, [*numbers, q])).arrays[0] for q in queries]

    def ask(i: int) -> bool:
        link = links.Link(shard.address, "")
        for _ in range(50):
            link.ask(Message.of(Kind.LARGEST, [*numbers, queries[i]]))
            (found,) = link.answer((expected[i].dtype, expected[i].shape)).arrays
            if (found != expected[i]).any():
                return False
        return True

    with shards(pack, (0, 4)) as (shard,), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(4)))


def test_a_machine_that_vanished_and_came_back_is_asked_again(pack: Path) -> None:
    """The system tells of it by a TimeoutError of its own."""

    class Vanished:
        def recv_into(self, view: memoryview) -> int:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        def close(self) -> None:
            pass

    with served(pack, []) as server:
        link = links.Link(server.address, "")
        link.ask(Message.of(*SOUND))
        assert link._connection is not None
        link._connection.close()
        link._connection = Vanished()  # type: ignore[assignment]
        shapes = QUERIES.shape, (*QUERIES.shape[:2], 2)
        answer = link.answer(*((np.dtype(np.float32), shape) for shape in shapes))
        assert [array.shape for array in answer.arrays] == [*shapes]
        link.close()


def test_those_who_say_nothing_keep_no_head_out(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the shard waits for what they might say."""
    monkeypatch.setattr("kvarn.runtime.shards.greeting.SECONDS", 1000.0)
    monkeypatch.setattr(serving, "_MOST_STRANGERS", 3)
    with served(pack, lines := []) as server, ExitStack() as stack:
        silent = []
        for _ in range(3):
            place = "127.0.0.1", server.port
            silent.append(stack.enter_context(socket.create_connection(place, WAIT)))
            receive(silent[-1])  # so that they are known in this order
        heads = [stack.enter_context(asked(server)) for _ in range(4)]
        assert not silent[0].recv(1)
        for head in (*silent[1:], *heads):
            head.setblocking(False)
            with pytest.raises(BlockingIOError):
                head.recv(1)
        heads[0].settimeout(WAIT)
        send(heads[0], *SOUND)
        assert receive(heads[0]).kind is Kind.ANSWER
    assert lines[0] == "refused 127.0.0.1: it has said nothing, and others wait"


def test_a_head_too_many_is_told_so(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST_HEADS", 2)
    with served(pack, lines := []) as server, asked(server), asked(server) as second:
        with pytest.raises(FrameError, match="2 heads are connected"):
            asked(server)
        second.close()
        until = time.monotonic() + WAIT
        while len(server._heads) == 2 and time.monotonic() < until:
            time.sleep(0.01)
        asked(server).close()
    assert lines == ["refused 127.0.0.1: 2 heads are connected"]
