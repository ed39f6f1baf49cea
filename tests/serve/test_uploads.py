"""Documents that are sent as files. Oracles: the texts that were written into them; httpx's forms;
and what `kvarn -f` says of the same bytes."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from kvarn.runtime.documents.__main__ import converted
from kvarn.serve.native import documents

from ..runtime.documents import made
from ..runtime.documents.test_documents import BAD, encrypted, readers  # noqa: F401 - a fixture
from .fake_engine import FakeEngine
from .live import serving

DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "report.pdf": (made.pdf("The mill", "the river"), "The mill\n\fthe river\n\f"),
    "letter.docx": (made.word("Dear miller"), "Dear miller\n"),
    "page.html": (b"<h1>Mill</h1><script>x</script>", "# Mill\n"),
    "PAGE.HTM": (b"<h1>Mill</h1>", "# Mill\n"),
    "notes.txt": ("Wasser läuft".encode(), "Wasser läuft"),
}


def sent_form(http: httpx.Client, file: str, data: bytes, **fields: Any) -> httpx.Response:
    return http.post("/packs", files={"file": (file, data)}, data={"stream": "false", **fields})


def sent_raw(http: httpx.Client, name: str, data: bytes) -> httpx.Response:
    return http.post("/packs", params={"name": name, "stream": "false"}, content=data)


@pytest.mark.parametrize("send", [sent_form, sent_raw])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_is_read_as_its_text(
    readers: None,  # noqa: F811
    http: httpx.Client,
    engine: FakeEngine,
    name: str,
    send: Callable[..., httpx.Response],
) -> None:
    data, text = DOCUMENTS[name]
    answer = send(http, name, data)
    assert answer.status_code == 200, answer.text
    assert answer.json()["pack"] == {"name": name, "n_tokens": len(text)}
    assert engine.texts == {name: text}


def test_a_form_has_fields_and_types(
    readers: None,  # noqa: F811
    http: httpx.Client,
    engine: FakeEngine,
) -> None:
    """A name beside the file's, a method, and a type that tells HTML where the name does not."""
    page = {"file": ('größe "x"', b"\r\n--<b>Mill</b>\r\n", "text/html; charset=utf-8")}
    fields = {"name": "größe", "method": "topk", "budget": "2%"}
    with http.stream("POST", "/packs", files=page, data=fields) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("event")]
    assert events[0] == "event: progress" and events[-1] == "event: done"
    assert list(engine.texts) == ["größe"] and "**Mill**" in engine.texts["größe"]
    [reading] = engine.readings
    assert reading.words == {"method": "topk", "budget": "2%"}


def test_pages_without_text_are_told_of(
    readers: None,  # noqa: F811
    http: httpx.Client,
    engine: FakeEngine,
) -> None:
    told = sent_form(http, "scan.pdf", made.pdf("one", "")).json()
    assert told["notices"] == ["scan.pdf: 1 of 2 pages have no text, the first of them page 2"]


@pytest.mark.parametrize("kind", [*BAD, "encrypted", "empty"])
def test_what_cannot_be_read_is_refused_in_one_line(
    readers: None,  # noqa: F811
    http: httpx.Client,
    engine: FakeEngine,
    kind: str,
) -> None:
    name = "x.html" if "page" in kind else "x"
    data = {"encrypted": lambda: encrypted("secret"), "empty": lambda: b""}.get(kind)
    data = (data or BAD[kind][0])()
    answer = sent_form(http, name, data)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "\n" not in message and len(message) < 300
    if kind == "empty":
        assert message == "text is '', expected a text that is not empty"
    else:
        suffix = ".html" if "page" in kind else ""
        assert message == converted(data, name, suffix)["refused"]
    assert engine.texts == {}


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("multipart/form-data", b"x", "has no boundary"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx", "ends before its last boundary"),
        ("multipart/form-data; boundary=b", b"", "ends before its last boundary"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--", "has no name"),
        ("multipart/form-data; boundary=b", b"--b--", "the form has 0 files, expected one"),
    ],
)
def test_damaged_forms_are_refused(
    http: httpx.Client, engine: FakeEngine, content_type: str, body: bytes, expected: str
) -> None:
    answer = http.post("/packs", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400 and expected in answer.json()["error"]["message"]


@pytest.mark.parametrize(("n_fields", "status"), [(63, 200), (64, 400)])
def test_forms_of_too_many_parts_are_refused(
    http: httpx.Client, engine: FakeEngine, n_fields: int, status: int
) -> None:
    fields = {f"other{i}": "x" for i in range(n_fields - 1)}
    answer = sent_form(http, "x.txt", b"x", **fields)
    assert answer.status_code == status
    if status == 400:
        message = answer.json()["error"]["message"]
        assert message == "the form has 65 parts, expected at most 64"


def test_wrong_fields_and_names_are_refused(http: httpx.Client, engine: FakeEngine) -> None:
    for fields in ({"name": "a/b"}, {"stream": "perhaps"}, {"pack": "other"}):
        assert sent_form(http, "x.txt", b"x", **fields).status_code == 400
    assert http.post("/packs", params={"name": ""}, content=b"x").status_code == 400
    assert engine.texts == {}


def test_a_reader_that_takes_long_holds_up_nobody_and_ends_with_its_client(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It tells its process, and waits for the pipe that ends with that."""
    started = tmp_path / "started"
    program = (
        "import os, sys, time, pathlib; "
        f"pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-c", program))
    with serving(engine) as address:
        host = address.removeprefix("http://")
        with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as client:
            head = f"POST /packs?name=x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\n"
            client.sendall(f"{head}x".encode())
            assert within(60, lambda: started.exists() and started.read_text())
            assert httpx.get(f"{address}/health", timeout=60).status_code == 200
        pid = int(started.read_text())
        assert within(60, lambda: not Path(f"/proc/{pid}").exists())


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether it holds at some time in so many seconds."""
    end = time.monotonic() + seconds
    while not (holds := bool(condition())) and time.monotonic() < end:
        threading.Event().wait(0.02)
    return holds


def test_a_reader_waits_for_its_turn() -> None:
    """Of which a server gives few at a time."""

    class NotYet(Exception):
        pass

    class Turn:
        async def __aenter__(self) -> None:
            raise NotYet

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(NotYet):
        asyncio.run(documents.convert_document(SimpleNamespace(converting=Turn()), b"x", "x", ""))


def test_a_reader_that_dies_is_told(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-c", "import os; os.abort()"))
    answer = sent_form(http, "x.pdf", b"x")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("x.pdf cannot be read: its reader ended")


def test_without_the_readers_it_tells_how_to_install_them(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = '{"refused": "x is a PDF file, which needs the package pypdf", "missing": true}'
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-c", f"print({told!r})"))
    answer = sent_form(http, "x", b"x")
    assert answer.status_code == 501 and "pypdf" in answer.json()["error"]["message"]
