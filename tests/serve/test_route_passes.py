"""What `kvarn route` passes on: to its servers alone, and of each request nothing but its own."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from kvarn.serve.route import proxy
from kvarn.serve.wire.log import Log

from .test_route import routing

LONG = b'{"prompt": "' + b"x" * 2000 + b'"}'
SECRET = {"authorization": "Bearer of the client"}


class Server:
    """A server of a kind, which writes down what it is asked, and gives each answer a cookie."""

    def __init__(self) -> None:
        self.asked = asked = list[tuple[str, dict[str, str]]]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                asked.append((self.path, dict(reversed(headers))))  # the first of each name
                only = asked[-1][1].get("kvarn-only") == "beginnings"
                self.close_connection = self.path == "/half"
                said = b'{"digests": []}' if only or self.path.endswith("/beginnings") else b"{}"
                self.send_response(200)
                self.send_header("content-length", str(len(said) + self.close_connection))
                self.send_header("set-cookie", f"session={len(asked)}; Path=/")
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def of_clients(self) -> list[tuple[str, dict[str, str]]]:
        """All but what the proxy itself asks."""
        return [one for one in self.asked if one[0] not in ("/health", "/beginnings")]

    def close(self) -> None:
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
    route = routing([behind.url], tell=lines.append)
    with route as (client, _), pytest.raises(httpx.RemoteProtocolError):
        client.get("/half")
    assert any(line.startswith(behind.url) and "complete" in line for line in lines), lines


def test_probes_that_find_all_well_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("text")
    for path, status in (("/health", 200), ("/beginnings", 200), ("/health", 503), ("/", 200)):
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
    with routing([behind.url]) as (client, route):
        answer = client.post("/v1/completions", content=LONG, headers={"kvarn-only": word})
        assert answer.json() == ({"digests": []} if word == "beginnings" else {})
        assert not route.all[0].sent
    assert len(behind.of_clients()) == 1


def test_a_server_without_digests_answers_the_request(
    behind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another program, which has taken a kvarn server's place since it was asked."""
    with routing([behind.url]) as (client, route):
        monkeypatch.setattr(sys.modules[proxy.__module__], "BEGINNINGS", "unknown")
        assert client.get("/health").status_code == 200 and route.all[0].tells
        assert client.post("/v1/completions", content=LONG).json() == {}
