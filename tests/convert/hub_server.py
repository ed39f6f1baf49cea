"""A small model hub on the loopback that speaks the Hugging Face hub's protocol.

Listings, revisions, redirects of large files to a second address (as to a CDN), ETags, ranges; and
the refusals: 401, 403, 404, 429. Faults are set per test: bodies cut short, waits asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = 2048  # bytes from which a file is stored elsewhere, as with LFS
TOKEN = "hf_good"


@dataclass
class Repository:
    """Files by name at one commit, and who may read them."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    revisions: tuple[str, ...] = ("main",)
    access: str = "public"
    """public, private, gated (terms not accepted) or forbidden (a token without the right)."""


@dataclass
class Hub:
    """What the server serves, which faults it has, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """The next bodies of large files end after so many bytes, in breach of their length."""
    stall_after: list[int] = field(default_factory=list)
    """The next bodies of large files stop after so many bytes, until the client is gone."""
    stalled: threading.Event = field(default_factory=threading.Event)
    """Set when one has stopped."""
    hostile: Callable[[BaseHTTPRequestHandler, str], bool] | None = None
    """Answers a request for a path in its own way; False where it leaves that to the hub."""
    waits: int = 0
    """The next requests, so many, are answered 429."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range of each."""
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of those that were answered with a file."""
    tokens: list[tuple[str, str]] = field(default_factory=list)
    """Host and Authorization of each."""
    url: str = ""
    store_url: str = ""
    """Where the hub sends its clients for large files: another host."""

    def add_folder(self, name: str, folder: Path) -> Repository:
        """A repository of a folder's files."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        self.repositories[name] = Repository(files)
        return self.repositories[name]

    def bodies(self, name: str) -> list[str]:
        """Ranges ("" for none) of the downloads of a file, in order."""
        return [asked for path, asked in self.sent if path.endswith(name)]


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub that answers on the loopback while the block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url, hub.store_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads):
            server.shutdown()
            thread.join()
            server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, code: str = "", **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {**({"X-Error-Code": code} if code else {}), **headers}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the tests look at `Hub.requests`."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        token = self.headers.get("Authorization", "")
        self.hub.tokens.append((f"http://{self.headers.get('Host')}", token))
        if self.hub.hostile is not None and self.hub.hostile(self, path):
            return
        try:
            if self.hub.waits > 0:
                self.hub.waits -= 1
                raise _Refused(429, **{"Retry-After": "1"})
            self._route(path)
        except _Refused as refused:
            self._send(refused.status, b"{}", refused.headers)

    def _route(self, path: str) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            name, repository = self._open(match[1])
            self._revision(repository, match[2] or "main")
            self._json(info(name, repository))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*match.groups())
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._body(path, self.hub.repositories[match[1]].files[match[2]], {})
        else:
            raise _Refused(404)

    def _open(self, name: str) -> tuple[str, Repository]:
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", TOKEN):
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            raise _Refused(401, **message)
        if repository is None or (repository.access == "private" and not token):
            # The hub does not tell strangers what there is.
            raise _Refused(404 if token else 401, "RepoNotFound")
        return name, repository

    def _revision(self, repository: Repository, revision: str) -> None:
        if revision not in (repository.commit, *repository.revisions):
            raise _Refused(404, "RevisionNotFound")

    def _resolve(self, name: str, revision: str, file: str) -> None:
        _, repository = self._open(name)
        self._revision(repository, revision)
        if repository.access == "gated":
            status = 403 if self.headers.get("Authorization") else 401
            raise _Refused(status, "GatedRepo")
        if repository.access == "forbidden":
            raise _Refused(403, **{"X-Error-Message": "the token lacks a permission"})
        if file not in repository.files:
            raise _Refused(404, "EntryNotFound", **{"X-Repo-Commit": repository.commit})
        data = repository.files[file]
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{git_id(data)}"'}
        if len(data) < LARGE:
            self._body(f"/{name}/{file}", data, headers)
            return
        headers |= {
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "Location": f"{self.hub.store_url}/cdn/{name}/{file}",
        }
        self._send(302, b"", headers)

    def _body(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        self.hub.sent.append((path, self.headers.get("Range", "")))
        start, end, status = 0, len(data), 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, end, status = int(match[1]), int(match[2]) + 1, 206
            headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        self._send(status, data[start:end], {**headers, "Accept-Ranges": "bytes"})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if len(body) >= LARGE and self.hub.cut_after:
            body = body[: self.hub.cut_after.pop(0)]
            self.close_connection = True
        if len(body) >= LARGE and self.hub.stall_after:
            self.wfile.write(body[: self.hub.stall_after.pop(0)])
            self.hub.stalled.set()
            self.close_connection = True
            self.connection.recv(1)
            return
        self.wfile.write(body)


def tiny_gguf(n_bytes: int) -> bytes:
    """A sound GGUF file of that size, which says what it is and holds no tensors."""
    key, value = b"general.architecture", b"llama"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    head += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    return head.ljust(n_bytes, b"\0")


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def info(name: str, repository: Repository) -> dict[str, object]:
    siblings = [_sibling(*item) for item in repository.files.items()]
    gated = "manual" if repository.access == "gated" else False
    return {"id": name, "modelId": name, "sha": repository.commit, "private": False,
            "gated": gated, "tags": [], "siblings": siblings}  # fmt: skip


def _sibling(name: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
    if len(data) >= LARGE:
        pointer = b"version 1, of %d bytes" % len(data)
        entry["blobId"] = git_id(pointer)
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data),
                        "pointerSize": len(pointer)}  # fmt: skip
    return entry
