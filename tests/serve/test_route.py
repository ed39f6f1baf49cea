"""`kvarn route`: requests go where most of their prompt was read, by engines that say what they
have read."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import httpx
import msgspec
import pytest

from kvarn.runtime.serving.protocol import Refused
from kvarn.serve import route

from .fake_engine import FACTS, FakeEngine
from .live import serving
from .routing import CHAT, LONG, SHORT, known, routing, until


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[httpx.Client, list[FakeEngine]]]:
    """A proxy, and the engines of two servers behind it, which are asked all the time."""
    monkeypatch.setattr(route, "POLL_SECONDS", 0.05)
    engines = [FakeEngine(), FakeEngine()]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(engine)) for engine in engines]
        client, _ = stack.enter_context(routing(urls))
        yield client, engines


def counts(engines: Sequence[FakeEngine]) -> list[int]:
    return [len(engine.asked) for engine in engines]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_request_goes_where_most_of_its_prompt_was_read(
    which: int, path: str, two: tuple[httpx.Client, list[FakeEngine]]
) -> None:
    client, engines = two
    text = f"<user>{LONG}"
    engines[which].held = [text[:n] for n in range(8, 800, 8)]
    engines[1 - which].held = [text[:n] for n in range(8, 400, 8)]
    until(lambda: max(known(client)) == 99 and min(known(client)) == 49)
    answer = client.post(path, json={**CHAT, "model": "default", "stream": False})
    assert answer.status_code == 200
    assert counts(engines)[which] == 1 and sum(counts(engines)) == 1


def test_a_prompt_follows_the_one_that_was_sent_before(
    two: tuple[httpx.Client, list[FakeEngine]],
) -> None:
    """Before the server says that it has read it."""
    client, engines = two
    for _ in range(4):
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert sorted(counts(engines)) == [0, 4]


def test_what_nobody_has_read_goes_to_the_least_busy(
    two: tuple[httpx.Client, list[FakeEngine]],
) -> None:
    client, engines = two
    for engine in engines:
        engine.answer, engine.pause = ["a"] * 10_000, 0.02
    with ExitStack() as stack:
        for n in (1, 2, 3, 4):
            stream = client.stream("POST", "/v1/chat/completions", json={**SHORT, "stream": True})
            stack.enter_context(stream)
            assert sorted(counts(engines)) == [n // 2, (n + 1) // 2]
    until(lambda: sum(engine.cancelled for engine in engines) == 4)  # clients that went away
    servers = client.get("/health").json()["servers"]
    until(lambda: [one["requests"] for one in client.get("/health").json()["servers"]] == [0, 0])
    assert [one["state"] for one in servers] == ["ok", "ok"]


def test_who_has_read_most_may_be_busier_but_not_by_much(
    two: tuple[httpx.Client, list[FakeEngine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MOST_AHEAD", 2)
    client, engines = two
    for engine in engines:
        engine.answer, engine.pause = ["a"] * 10_000, 0.02
    engines[0].held = [f"<user>{LONG}"[:n] for n in range(8, 800, 8)]
    until(lambda: known(client) == [99, 0])
    with ExitStack() as stack:
        for expected in ([1, 0], [2, 0], [3, 0], [3, 1]):
            stream = client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True})
            stack.enter_context(stream)
            assert counts(engines) == expected


def test_a_full_server_is_passed_over(two: tuple[httpx.Client, list[FakeEngine]]) -> None:
    client, engines = two
    busy = Refused(1, "busy", "64 requests are waiting")
    engines[0].refusal = busy
    for _ in range(3):
        assert client.post("/v1/chat/completions", json=SHORT).status_code == 200
    engines[1].refusal = busy
    answer = client.post("/v1/chat/completions", json=SHORT)
    assert answer.status_code == 429 and "64 requests" in answer.json()["error"]["message"]


def test_models_may_differ(two: tuple[httpx.Client, list[FakeEngine]]) -> None:
    client, engines = two
    engines[1].facts = msgspec.structs.replace(FACTS, path="/models/other.gguf", name="other")
    for body in (SHORT, CHAT):
        asked = {**body, "model": "other"}
        assert client.post("/v1/chat/completions", json=asked).status_code == 200
    assert counts(engines) == [0, 2]
    answer = client.post("/v1/chat/completions", json={**CHAT, "model": "third"})
    assert answer.status_code == 404 and "third" in answer.json()["error"]["message"]


def test_pages_of_other_sites_are_refused(two: tuple[httpx.Client, list[FakeEngine]]) -> None:
    client, engines = two
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        answer = client.post("/v1/chat/completions", json=SHORT, headers=headers)
        assert answer.status_code == 403
    assert counts(engines) == [0, 0]
