"""`kvarn route`: its servers, how they are named, told of, lost and found again, and real ones."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash

import kvarn
from kvarn.commands.answering.route import address
from kvarn.runtime.home import pack_path
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.serving.protocol import Pieces
from kvarn.runtime.serving.requests.beginnings import digests_of
from kvarn.serve import route
from kvarn.serve.native import documents
from kvarn.system.errors import KvarnError

from .fake_engine import FakeEngine
from .live import serving
from .routing import CHAT, LONG, SHORT, known, routing, until
from .test_live_engine import served


def test_what_was_sent_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "MOST_SENT", 1)
    with serving(FakeEngine()) as url, routing([url]) as (client, behind):
        sent = []
        for text in (LONG, LONG[::-1]):
            body = {**CHAT, "messages": [{"role": "user", "content": text}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            sent.append(set(behind.all[0].sent))
    assert len(sent[0]) > 1 and len(sent[1]) > 1 and not sent[0] & sent[1]


class Gated(FakeEngine):
    """An engine that generates the rest of an answer when its first piece was seen."""

    def __init__(self) -> None:
        super().__init__(answer=["Hel", "lo", "!"])
        self.is_seen = threading.Event()

    async def generate(self, *asked: Any, **fields: Any) -> AsyncIterator[Any]:
        async for message in super().generate(*asked, **fields):
            yield message
            while isinstance(message, Pieces) and not self.is_seen.is_set():
                await asyncio.sleep(0.01)


def test_streams_come_piece_by_piece() -> None:
    engine, text = Gated(), ""
    asked = {**SHORT, "stream": True}
    with (
        serving(engine) as url,
        routing([url]) as (client, _),
        client.stream("POST", "/v1/chat/completions", json=asked) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if text == "Hel":
                    engine.is_seen.set()
    assert text == "Hello!"


def test_a_server_that_dies_is_left_out_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "POLL_SECONDS", 0.05)
    alive = FakeEngine()
    with ExitStack() as stack:
        dying = stack.enter_context(ExitStack())
        other = dying.enter_context(serving(FakeEngine(held=["x"])))
        url = stack.enter_context(serving(alive))
        client, behind = stack.enter_context(routing([other, url]))
        until(lambda: known(client) == [1, 0])
        dying.close()
        for _ in range(4):
            assert client.post("/v1/chat/completions", json=SHORT).status_code == 200
        assert len(alive.asked) == 4
        until(lambda: behind.all[0].state != "ok")
        health = client.get("/health")
        assert health.status_code == 200 and health.json()["servers"][0]["state"] != "ok"
        alive.state, alive.reason = "dead", "the engine died"
        until(lambda: client.get("/health").status_code == 503)
        answer = client.post("/v1/chat/completions", json=SHORT)
        assert answer.status_code == 503 and "no server is ready" in answer.text
        alive.state = "ready"
        until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/chat/completions", json=SHORT).status_code == 200


def test_asking_for_beginnings_changes_nothing(
    address_of_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "COMMAND", ("none",))
    only = {"kvarn-only": "beginnings"}
    http = httpx.Client(base_url=address_of_one, headers=only, timeout=30)
    answer = http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    text = f"<user>{LONG}"
    assert answer.json() == {"digests": [text[:n] for n in range(8, len(text) + 1, 8)]}
    for refused in (
        http.delete("/packs/mill"),
        http.post("/packs", json={"name": "mill", "text": "a"}),
        http.post("/v1/embeddings", json={"input": "a", "model": "default"}),
        http.post("/packs", params={"name": "a.pdf"}, content=b"%PDF-"),  # which is not converted
    ):
        assert refused.status_code == 400 and "reads no prompt" in refused.text


@pytest.fixture
def address_of_one() -> Iterator[str]:
    with serving(FakeEngine(stored={"mill": 3})) as url:
        yield url


@pytest.mark.parametrize(
    "key, told",
    [("", "it wants a key: give --api-key KEY"), ("bad", "refuses the key"), ("good", None)],
)
def test_a_key_that_does_not_open_is_told(key: str, told: str | None) -> None:
    lines: list[str] = []
    with ExitStack() as stack:
        url = stack.enter_context(serving(FakeEngine(), keys=("good",)))
        client, _ = stack.enter_context(routing([url], key, lines.append))
        client.get("/health")
    assert [told in line for line in lines if "key" in line] == ([] if told is None else [True])


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("gpu1", "http://gpu1:8080"),
        ("gpu1:9000", "http://gpu1:9000"),
        ("http://gpu1", "http://gpu1"),
        ("https://gpu1:1/kvarn/", "https://gpu1:1/kvarn"),
        ("[::1]:80", "http://[::1]:80"),
        ("10.0.0.2", "http://10.0.0.2:8080"),
    ],
)
def test_servers_are_named_as_people_name_them(word: str, url: str) -> None:
    assert address(word) == url


@pytest.mark.parametrize("word", ["", "a b", "ftp://a", "a:x", "a:99999", "http://u:p@a", "a?b"])
def test_what_is_no_server_is_refused(word: str) -> None:
    with pytest.raises(KvarnError, match="is no server"):
        address(word)


def test_digests_are_those_of_the_first_tokens() -> None:
    ids = np.random.default_rng(1).integers(0, 1 << 20, 3000).astype(np.uint32)
    expected = [
        xxhash.xxh3_64_hexdigest(b"model" + ids[:n].astype("<u4").tobytes()) for n in (1024, 2048)
    ]
    assert digests_of(ids, "model") == expected
    assert digests_of(ids[:1023], "model") == []


def test_two_real_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that one of them has, in which a text's beginning is, draws the text to it; what a
    server has answered draws what follows. Then one is killed."""
    text = LONG * 4
    words = (str(default_model_path()), "--ctx", "4096", "-t", "1")
    with ExitStack() as stack:
        homes = [tmp_path / "one", tmp_path / "other"]
        found = []
        for n, home in enumerate(homes):
            monkeypatch.setenv("KVARN_HOME", str(home))
            if n == 1:
                kvarn.build_pack(kvarn.load(), pack_path("mill"), text)
            found.append(stack.enter_context(served(*words)))
        urls = [url for url, _ in found]
        client, behind = stack.enter_context(routing(urls))
        asked: Any = {"prompt": text + "The", "max_tokens": 4, "temperature": 0}

        until(lambda: len(behind.all[1].held) >= 1)
        answer = client.post("/v1/completions", json=asked, timeout=300)
        assert answer.status_code == 200, answer.text
        assert behind.all[1].sent and not behind.all[0].sent
        in_pack = client.post("/v1/completions", json={**asked, "prompt": "Who", "pack": "mill"})
        assert in_pack.status_code == 200
        found[1][1].kill()
        again = client.post("/v1/completions", json=asked, timeout=300)
        assert again.json()["choices"] == answer.json()["choices"]
        assert behind.all[0].sent and behind.all[1].state != "ok"
        lost = client.post("/v1/completions", json={**asked, "prompt": "Who", "pack": "mill"})
        assert lost.status_code == 404
