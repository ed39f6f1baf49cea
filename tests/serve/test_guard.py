"""Who may ask, how much, how fast; what becomes of clients that go away or do not read."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvarn.runtime.serving.calls import RequestRefused
from kvarn.runtime.serving.protocol import Pieces, Progress, Refused
from kvarn.serve.settings import Limits

from .fake_engine import FakeEngine
from .live import serving

PATH = "/v1/chat/completions"
BODY: Any = {"messages": [{"role": "user", "content": "secret words"}]}


def request_head(address: str, n_bytes: int, path: str = PATH) -> tuple[socket.socket, bytes]:
    """A connection, and the first lines of a request with a body of so many bytes."""
    host, _, port = address.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return connection, f"{head}Content-Length: {n_bytes}\r\n\r\n".encode()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_other_names_are_refused(http: httpx.Client, engine: FakeEngine, host: str) -> None:
    answer = http.post(PATH, json=BODY, headers={"host": host})
    assert answer.status_code == 403
    assert (
        answer.json()["error"]["message"] == f"Host is {host!r}, expected the name of this server"
    )
    assert engine.asked == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080"])
def test_this_machines_names_are_served(http: httpx.Client, engine: FakeEngine, host: str) -> None:
    assert http.post(PATH, json=BODY, headers={"host": host}).status_code == 200


def test_pages_of_other_sites_are_refused(http: httpx.Client, engine: FakeEngine) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://["):
        answer = http.post(PATH, json=BODY, headers={"origin": origin})
        assert answer.status_code == 403 and engine.asked == []
        assert "access-control-allow-origin" not in answer.headers
    here = str(http.base_url).rstrip("/")
    assert http.post(PATH, json=BODY, headers={"origin": here}).status_code == 200
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert http.options(PATH, headers=preflight).status_code == 403


def test_keys_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    with serving(engine, keys=("first-key", "kéy".encode().decode("latin-1")), log="json") as at:
        assert httpx.get(f"{at}/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "first-ke"}):
            answer = httpx.post(f"{at}{PATH}", json=BODY, headers=headers)
            assert answer.status_code == 401 and "www-authenticate" in answer.headers
            answer = httpx.post(f"{at}/v1/messages", json=BODY, headers=headers)
            assert answer.json()["error"]["type"] == "authentication_error"
            assert httpx.get(f"{at}/metrics", headers=headers).status_code == 401
        assert engine.asked == []
        for headers in ({"authorization": "Bearer first-key"}, {"x-api-key": "first-key"}):
            answer = httpx.post(f"{at}{PATH}?key=first-key", json=BODY, headers=headers)
            assert answer.status_code == 200
        # A page cannot know the key, so any name may be this server's.
        named = {"host": "box.example", "x-api-key": "first-key"}
        assert httpx.post(f"{at}{PATH}", json=BODY, headers=named).status_code == 200
    printed = capfd.readouterr().err
    assert "secret" not in printed and "first-key" not in printed and "wrong" not in printed
    # A server of an earlier test may tell of its last request as late as now, in plain words.
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert {line["event"] for line in lines} == {"request"}
    assert [line["generated"] for line in lines if line["status"] == 200 and "generated" in line]


WRONG_BODIES = [
    (b"", "application/json", 400),
    (b"{", "application/json", 400),
    (b"[]", "application/json", 400),
    (b"\xff\xfe", "application/json", 400),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "application/json", 400),
    (b"[" * 200_000, "application/json", 400),
    (b'{"messages":' + b'[{"a":' * 50_000, "application/json", 400),
    (b'{"messages": [], "tools": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "application/json", 400),
    (b"<xml/>", "text/xml", 400),
    (b"--a\r\n", "multipart/form-data; boundary=a", 400),
]


@pytest.mark.parametrize(("body", "kind", "status"), WRONG_BODIES)
@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/api/chat", "/packs", "/tokenize"])
def test_wrong_bodies_are_refused(
    http: httpx.Client, engine: FakeEngine, path: str, body: bytes, kind: str, status: int
) -> None:
    answer = http.post(path, content=body, headers={"content-type": kind})
    assert answer.status_code == status and "error" in answer.json()
    assert engine.asked == []


def test_huge_bodies_are_refused_and_their_clients_get_to_know() -> None:
    engine = FakeEngine()
    with serving(engine, Limits(body_bytes=1 << 20, stop_seconds=1)) as at:
        for body in (b"x" * (3 << 20), iter([b"x" * 65536] * 40)):
            headers = {"content-type": "application/json"}
            answer = httpx.post(f"{at}{PATH}", content=body, headers=headers)
            assert answer.status_code == 413
            assert "expected at most 1,048,576" in answer.json()["error"]["message"]
        packed = {"content-encoding": "gzip"}
        assert httpx.post(f"{at}{PATH}", json=BODY, headers=packed).status_code == 415
    assert engine.asked == []


def test_slow_bodies_end() -> None:
    with serving(FakeEngine(), Limits(body_seconds=0.3, stop_seconds=1)) as at:
        connection, head = request_head(at, 1000)
        with connection:
            connection.sendall(head + b"{")
            assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_goes_away_cancels_its_request() -> None:
    for stream in (False, True):
        engine = FakeEngine(["a"] * 1000, pause=0.01)
        with serving(engine) as at:
            data = json.dumps({**BODY, "stream": stream}).encode()
            connection, head = request_head(at, len(data))
            connection.sendall(head + data)
            assert until(lambda engine=engine: bool(engine.asked))
            if stream:
                assert connection.recv(100)
            connection.close()
            assert until(lambda engine=engine: engine.cancelled == 1)


def test_a_client_that_does_not_read_frees_its_place() -> None:
    engine = FakeEngine(["x" * 100_000] * 1000)
    with serving(engine, Limits(stalled_seconds=0.5, stop_seconds=1)) as at:
        data = json.dumps({**BODY, "stream": True}).encode()
        connection, head = request_head(at, len(data))
        with connection:
            connection.sendall(head + data)
            assert until(lambda: engine.cancelled == 1)
            assert httpx.get(f"{at}/health").json()["requests"] == 0


def test_answers_that_do_not_begin_end() -> None:
    engine = FakeEngine()

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(60)
        yield

    engine.generate = never  # type: ignore[method-assign]
    with serving(engine, Limits(first_byte_seconds=0.3, stop_seconds=1)) as at:
        answer = httpx.post(f"{at}{PATH}", json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "no answer within 0.3 seconds" in answer.text


def test_too_many_requests_are_refused_at_once() -> None:
    engine = FakeEngine(pause=5.0)
    limits = Limits(queue=0, stop_seconds=1)
    with serving(engine, limits, parallel=1) as at:
        data = json.dumps(BODY).encode()
        waiting = [request_head(at, len(data)) for _ in range(2)]
        for connection, head in waiting:
            connection.sendall(head + data)
        assert until(lambda: len(engine.asked) == 2)
        answer = httpx.post(f"{at}{PATH}", json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert httpx.get(f"{at}/health").status_code == 200
        for connection, _ in waiting:
            connection.close()
        assert until(lambda: engine.cancelled == 2)


def test_faults_are_told_without_words_of_the_prompt(capfd: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret words")

    engine.generate = broken  # type: ignore[method-assign]
    with serving(engine) as at:
        answer = httpx.post(f"{at}{PATH}", json=BODY)
        assert answer.status_code == 500 and "secret" not in answer.text
    printed = capfd.readouterr().err
    assert "unexpected RuntimeError at" in printed and "secret" not in printed


def test_a_stream_that_fails_ends_with_the_error(http: httpx.Client, engine: FakeEngine) -> None:
    async def dying(*_: Any, **__: Any) -> Any:
        yield Progress(1, 0, 10, 0)
        yield Pieces(1, "Hel", [1])
        raise RequestRefused(Refused(1, "engine", "the engine ended"))

    engine.generate = dying  # type: ignore[method-assign]
    try:
        for path, last in (
            (PATH, 'data: {"error":{"message":"the engine ended"'),
            ("/v1/messages", 'event: error\ndata: {"type":"error"'),
            ("/api/chat", '{"error":"the engine ended"}'),
        ):
            text = http.post(path, json={**BODY, "stream": True, "max_tokens": 9}).text
            assert "Hel" in text and last in text.rstrip().rpartition("\n\n")[2], text
    finally:
        del engine.generate  # type: ignore[method-assign]
