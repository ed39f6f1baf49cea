"""What `kvarn route` passes on: to its servers alone, and of each request nothing but its own."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from kvarn.serve import route
from kvarn.serve.beginnings import digests_in
from kvarn.serve.wire.log import Log

from .fake_engine import FakeEngine
from .live import serving
from .routing import routing, until

LONG = b'{"prompt": "' + b"x" * 2000 + b'"}'
SECRET = {"authorization": "Bearer of the client"}


class Server:
    """A server of a kind, which writes down what it is asked, and gives each answer a cookie."""

    def __init__(self) -> None:
        self.asked = asked = list[tuple[str, dict[str, str]]]()
        self.goes_on = goes_on = threading.Event()
        goes_on.set()
        self.waits_at = waits_at = set[str]()
        self.drips_at = drips_at = set[str]()
        self.statuses = statuses = dict[str, int]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                asked.append((self.path, dict(reversed(headers))))  # the first of each name
                only = asked[-1][1].get("kvarn-only") == "beginnings"
                self.close_connection = self.path in ("/half", "/stalls")
                if self.path in drips_at:
                    self.send_response(200)
                    self.send_header("content-length", "1000000")
                    self.end_headers()
                    while self.path in drips_at:
                        self.wfile.write(b" ")
                        time.sleep(0.01)
                    self.close_connection = True
                    return
                said = b'{"digests": []}' if only or self.path.endswith("/beginnings") else b"{}"
                self.send_response(statuses.get(self.path, 200))
                self.send_header("content-length", str(len(said) + self.close_connection))
                self.send_header("set-cookie", f"session={len(asked)}; Path=/")
                self.end_headers()
                self.wfile.write(said)
                if self.path == "/stalls":
                    goes_on.wait()

            def parse_request(self) -> bool:
                is_whole = super().parse_request()
                if is_whole and (not waits_at or self.path in waits_at):
                    goes_on.wait()
                return is_whole

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def of_clients(self) -> list[tuple[str, dict[str, str]]]:
        """All but what the proxy itself asks."""
        of_route = ("/health", "/beginnings", "/v1/models")
        return [one for one in self.asked if one[0] not in of_route]

    def close(self) -> None:
        self.goes_on.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def behind() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_no_path_leads_to_another_server_or_out_of_the_servers_own(behind: Server) -> None:
    other = Server()
    paths = f"@127.0.0.1:{other.port}/x", f":{other.port}/x", "x", "*", "/../x", "/a/%2E%2e/x"
    paths += "/..%2Fx", "/a%2f%2e.%2fx", "/..%5cx", "/..\\x"
    with routing([f"{behind.url}/kvarn"]) as (client, _):
        for path in paths:
            with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as to:
                to.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert to.recv(4096).startswith(b"HTTP/1.1 400 "), path
        assert client.get("/a").status_code == 200
    assert not other.asked
    assert [path for path, _ in behind.asked if path.endswith(("x", "a"))] == ["/kvarn/a"]
    other.close()


def test_a_server_that_ends_in_the_middle_of_an_answer_is_told(behind: Server) -> None:
    lines: list[str] = []
    routes = routing([behind.url], tell=lines.append)
    with routes as (client, _), pytest.raises(httpx.RemoteProtocolError):
        client.get("/half")
    assert any(line.startswith(behind.url) and "broke off" in line for line in lines), lines


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are asked all the time, and soon found stuck."""
    monkeypatch.setattr(route, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(route, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(route, "STUCK_SECONDS", 0.2)


@pytest.mark.usefixtures("quick")
def test_what_a_stuck_server_was_asked_goes_to_another(behind: Server) -> None:
    other, lines = Server(), list[str]()
    behind.waits_at.add("/a")
    behind.goes_on.clear()
    routes = routing([behind.url, other.url], tell=lines.append)
    with routes as (client, known), ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.get, "/a")
        until(lambda: known.all[0].limits)
        behind.waits_at.clear()  # it answers no question any more, about its health neither
        assert answer.result().status_code == 200
        assert [path for path, _ in other.of_clients()] == ["/a"]
        assert f"{behind.url}: it does not answer" in lines
    other.close()


@pytest.mark.parametrize("path", ["/health", "/beginnings"])
def test_a_server_whose_words_never_end_keeps_no_other_from_being_asked(
    behind: Server, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(route, "PATIENCE_SECONDS", 0.5)
    other = Server()
    behind.drips_at.add(path)
    with routing([behind.url, other.url]) as (client, known):
        until(lambda: known.all[0].state == "it does not answer")
        assert client.get("/a").status_code == 200
        behind.drips_at.clear()
        until(lambda: known.all[0].state == "ok")
    assert [path for path, _ in other.of_clients()] == ["/a"]
    other.close()


@pytest.mark.usefixtures("quick")
def test_an_answer_of_a_server_that_gets_stuck_ends(behind: Server) -> None:
    behind.waits_at.add("/stalls")
    routes = routing([behind.url])
    with routes as (client, _), client.stream("GET", "/stalls") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"{}"
        behind.goes_on.clear()
        behind.waits_at.clear()
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


@pytest.mark.usefixtures("quick")
def test_a_server_that_only_takes_long_is_waited_for(
    behind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "PATIENCE_SECONDS", 30.0)
    behind.waits_at.add("/a")
    behind.goes_on.clear()
    with routing([behind.url]) as (client, _), ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.get, "/a")
        until(lambda: len(behind.asked) > 20)  # questions about its health, for longer than 0.2 s
        behind.goes_on.set()
        assert answer.result().status_code == 200
    assert len(behind.of_clients()) == 1


def test_keys_are_checked_before_a_body_is_read() -> None:
    with (
        serving(FakeEngine(), keys=("good",)) as url,
        routing([url]) as (client, _),
        socket.create_connection((client.base_url.host, client.base_url.port or 0)) as to,
    ):
        to.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
        )
        assert to.recv(4096).startswith(b"HTTP/1.1 401 ")
        for key, status in (("bad", 401), ("good", 200)):
            headers = {"x-api-key": key}
            answer = client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
            assert answer.status_code == status, answer.text


def test_the_key_of_a_body_is_checked_until_a_server_takes_it(
    behind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again once one refuses it, or as many others were taken; requests without bodies bring
    theirs."""
    monkeypatch.setattr(route, "MOST_KEYS", 2)

    def checked() -> list[str]:
        return [headers["x-api-key"] for path, headers in behind.asked if path == "/v1/models"]

    def post(key: str) -> int:
        return client.post("/a", content=b"x", headers={"x-api-key": key}).status_code

    with routing([behind.url]) as (client, _):
        assert [post("a"), post("a"), client.get("/a").status_code] == [200] * 3
        assert checked() == ["a"]
        behind.statuses["/a"] = 401  # the server was started with another key
        assert [post("a"), post("a")] == [401, 401]
        assert checked() == ["a", "a"]
        behind.statuses["/v1/models"] = 401
        assert [post("b"), post("b")] == [401, 401]
        assert checked() == ["a", "a", "b", "b"]
        behind.statuses.clear()
        assert [post(key) for key in "abcba"] == [200] * 5
        assert checked()[4:] == ["a", "b", "c", "b", "a"]
        behind.statuses["/v1/models"] = 500  # which says nothing of the key
        assert [post("d"), post("d")] == [200, 200]
        assert checked()[9:] == ["d", "d"]


def test_a_server_that_went_may_come_back_with_other_keys(
    behind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "POLL_SECONDS", 0.05)
    with routing([behind.url]) as (client, known):
        assert client.post("/a", content=b"x", headers=SECRET).status_code == 200
        behind.statuses["/health"] = 503
        until(lambda: known.all[0].state != "ok")
        behind.statuses.clear()
        until(lambda: known.all[0].state == "ok")
        assert client.post("/a", content=b"x", headers=SECRET).status_code == 200
    assert [path for path, _ in behind.asked].count("/v1/models") == 2


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_http_has_not_is_no_answer(behind: Server, status: int) -> None:
    behind.statuses["/a"] = status
    with routing([behind.url]) as (client, _):
        answer = client.get("/a")
        assert answer.status_code == 502
        words = f"{behind.url} answers {status}, expected at most 599"
        assert answer.json()["error"]["message"] == words
        assert client.get("/b").status_code == 200


def test_probes_that_find_all_well_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("text")
    for path in ("/health", "/metrics", "/beginnings"):
        log.request("GET", path, 200, 0.0, {})
        log.request("HEAD", path, 200, 0.0, {})
    for path, status in (("/health", 503), ("/", 200)):
        log.request("GET", path, status, 0.0, {})
    logged = [line.split()[3:5] for line in capsys.readouterr().err.splitlines()]
    assert logged == [["/health", "503"], ["/", "200"]]


def test_a_request_carries_its_own_headers_and_no_cookie_of_another(behind: Server) -> None:
    headers = {**SECRET, "connection": "x-hop", "x-hop": "1", "cookie": "own=1"}
    with routing([behind.url]) as (client, _), httpx.Client(base_url=client.base_url) as second:
        assert client.get("/a", headers=headers).cookies["session"]
        second.headers.clear()
        assert second.get("/b").status_code == 200
    (_, first), (_, then) = behind.of_clients()
    assert first["cookie"] == "own=1" and first["authorization"] == SECRET["authorization"]
    assert "x-hop" not in first
    assert then.keys() <= {"host", "connection"}


@pytest.mark.parametrize("word", ["beginnings", "other"])
def test_who_asks_for_digests_is_answered_once(behind: Server, word: str) -> None:
    with routing([behind.url]) as (client, known):
        answer = client.post("/v1/completions", content=LONG, headers={"kvarn-only": word})
        assert answer.json() == ({"digests": []} if word == "beginnings" else {})
        assert not known.all[0].sent
    assert len(behind.of_clients()) == 1


def test_a_server_without_digests_answers_the_request(
    behind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another program, which has taken a kvarn server's place since it was asked."""
    with pytest.raises(ValueError, match="nested too deep"):
        digests_in(b'{"digests": [], "x": ' + b"[" * 100_000)
    with routing([behind.url]) as (client, known):
        monkeypatch.setattr(route, "BEGINNINGS", "unknown")
        assert client.get("/health").status_code == 200 and known.all[0].gives_digests
        assert client.post("/v1/completions", content=LONG).json() == {}
