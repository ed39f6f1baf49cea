"""Shards that die, come back or stand still: no wrong token, and no endless wait."""

import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.shards import ShardError, links

from .processes import ShardProcess, greedy, opened, over, shards


@pytest.fixture(scope="module")
def expected(model: kvarn.Model, pack: Path) -> list[int]:
    """32 ids of one context."""
    with opened(model, pack, kvarn.Full()) as context:
        context.prefill([1, 2, 3])
        return greedy(context, 32)


def test_a_shard_that_comes_back_is_asked_again(
    model: kvarn.Model, pack: Path, expected: list[int]
) -> None:
    with shards(pack, (0, 2)) as (first,):
        second = ShardProcess(pack, (2, 5))
        with opened(model, pack, over([first.address, second.address])) as context:
            context.prefill([1, 2, 3])
            begun = greedy(context, 10)
            second.kill()
            second = ShardProcess(pack, (2, 5), port=second.port)
            assert begun + greedy(context, 22) == expected
        second.close()


def test_a_shard_that_stays_away_ends_the_token_in_one_line(
    model: kvarn.Model, pack: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RECONNECT_SECONDS", 1.0)
    with shards(pack, (2, 5)) as (second,):
        first = ShardProcess(pack, (0, 2))
        with opened(model, pack, over([first.address, second.address])) as context:
            context.prefill([1, 2, 3])
            begun = greedy(context, 10)
            first.kill()
            n, line = len(context.tokens), f"shard {re.escape(first.address)}: it is gone"
            for _ in range(2):  # the second time, with connections that are closed already
                with pytest.raises(ShardError, match=line):
                    context.decode(expected[10])
                assert len(context.tokens) == n
            first = ShardProcess(pack, (0, 2), port=first.port)
            context.decode(expected[10])
            assert begun + expected[10:11] + greedy(context, 21) == expected
        first.close()


def test_a_head_that_fails_at_one_shard_does_not_wait_for_others(
    model: kvarn.Model, pack: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard stands still, so that its answer is still to come when the other has died."""
    monkeypatch.setattr(links, "RECONNECT_SECONDS", 0.5)
    with shards(pack, (2, 5)) as (second,):
        first = ShardProcess(pack, (0, 2))
        with opened(model, pack, over([first.address, second.address])) as context:
            context.prefill([1, 2, 3])
            first.kill()
            os.kill(second.pid, signal.SIGSTOP)
            with pytest.raises(ShardError, match=re.escape(first.address)):
                context.decode(expected[0])
            os.kill(second.pid, signal.SIGCONT)
            first = ShardProcess(pack, (0, 2), port=first.port)
            context.decode(expected[0])
            assert expected[:1] + greedy(context, 31) == expected  # no answer of before is taken
        first.close()


def test_a_shard_that_stands_still_is_given_up(
    model: kvarn.Model, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ANSWER_SECONDS", 0.5)
    with shards(pack, (0, 5)) as (shard,), opened(model, pack, over([shard.address])) as context:
        os.kill(shard.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ShardError, match="not answered for"):
                context.prefill([1, 2, 3])
        finally:
            os.kill(shard.pid, signal.SIGCONT)


def test_a_machine_that_takes_connections_and_says_nothing_is_given_up(
    model: kvarn.Model, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvarn.runtime.shards.greeting.SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ShardError, match=f"{address}: cannot be reached"):
            opened(model, pack, over([address]))


def test_a_shard_that_dies_within_a_message_is_asked_again(
    model: kvarn.Model, pack: Path, expected: list[int]
) -> None:
    """A proxy cuts the connection in the middle of each third answer."""
    with shards(pack, (0, 5)) as (shard,), socket.create_server(("127.0.0.1", 0)) as server:
        proxy = threading.Thread(target=_cutting, args=(server, shard.port), daemon=True)
        proxy.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with opened(model, pack, over([address])) as context:
            context.prefill([1, 2, 3])
            assert greedy(context, 32) == expected


def _cutting(server: socket.socket, port: int) -> None:
    """Pass connections on to a port, each until 40,000 bytes have come back."""
    while True:
        try:
            head, _ = server.accept()
        except OSError:
            return
        shard = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=_pump, args=(head, shard, 1 << 40), daemon=True).start()
        threading.Thread(target=_pump, args=(shard, head, 40_001), daemon=True).start()


def _pump(source: socket.socket, to: socket.socket, most: int) -> None:
    with suppress(OSError):
        while most and (data := source.recv(min(most, 4096))):
            to.sendall(data)
            most -= len(data)
    for one in (source, to):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def test_shards_survive_heads_that_go_in_the_middle(pack: Path) -> None:
    with shards(pack, (0, 5)) as (shard,):
        for n in (0, 3, 40):
            with socket.create_connection(("127.0.0.1", shard.port)) as head:
                head.recv(1)
                head.sendall(b"kvsh" + bytes(n))
        time.sleep(0.1)
        assert links.Link(shard.address, "").facts.stop == 5 * 1024
