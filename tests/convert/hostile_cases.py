"""What hostile hubs answer: listings, how they are sent, and what comes for a file."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterator

from .hostile_hub import (
    FILE,
    SIZE,
    Case,
    Handler,
    Listing,
    drip,
    endless,
    reply,
    whole,
    whole_raw,
)

HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>\n"
BOMB = gzip.compress(bytes(20 << 20), compresslevel=1)


def cases() -> list[Case]:
    """All of them, always the same."""
    rng = random.Random(6)
    all_cases = [
        *_commits(),
        *_siblings(rng),
        *_names(rng),
        *_bodies(rng),
        *_transport(rng),
        *_streams(rng),
        *_ids(),
        *_files(rng),
    ]
    assert len({case.repo for case in all_cases}) == len(all_cases)
    return all_cases


def _set(key: str, value: object) -> Callable[[Listing], object]:
    def change(listing: Listing) -> None:
        listing[key] = value

    return change


def _in_file(key: str, value: object) -> Callable[[Listing], object]:
    def change(listing: Listing) -> None:
        listing["siblings"][0][key] = value

    return change


def _without(key: str) -> Callable[[Listing], object]:
    def change(listing: Listing) -> None:
        del listing["siblings"][0][key]

    return change


def _named(*names: str) -> Callable[[Listing], object]:
    """Files of these names beside the model."""

    def change(listing: Listing) -> None:
        first = listing["siblings"][0]
        listing["siblings"] += [{**first, "rfilename": name} for name in names]

    return change


def _commits() -> Iterator[Case]:
    bad = (None, 5, "", "../../../../x", "a" * 39, "A" * 40, "a" * 40 + "\n", "a" * 39 + "/",
           ["a" * 40], {}, "a" * 4000, "\u0661" * 40, True)  # fmt: skip
    for i, value in enumerate(bad):
        yield Case(f"commit {i}", listing=_set("sha", value))


def _siblings(rng: random.Random) -> Iterator[Case]:
    for i, value in enumerate(
        (None, {}, "x", 7, [1], [None], [[]], [{}], ["a"], [[["a"]]], [True])
    ):
        yield Case(f"siblings {i}", listing=_set("siblings", value))
    sizes = ("5000", -1, 1.5, 1e300, None, [], {}, True, 1 << 60, SIZE - 1, SIZE + 1, 0,
             10**15, rng.randrange(1, SIZE - 1), rng.randrange(SIZE + 1, 1 << 40))  # fmt: skip
    for i, size in enumerate(sizes):
        yield Case(f"size {i}", listing=_in_file("size", size))
    flipped = "".join(rng.choice("0123456789abcdef") for _ in range(64))
    for i, digest in enumerate((None, 5, "", "../../../../x", flipped, flipped[:40], "/etc/passwd",
                                flipped[:63] + "\n", [flipped], {"a": 1})):  # fmt: skip
        lfs = {"sha256": digest, "size": SIZE, "pointerSize": 130}
        yield Case(f"sha256 {i}", listing=_in_file("lfs", lfs))
    for i, lfs in enumerate(([], "x", 3, [1], True, {"oid": flipped})):
        yield Case(f"lfs {i}", listing=_in_file("lfs", lfs))
    for key in ("rfilename", "size", "lfs"):
        yield Case(f"without {key}", listing=_without(key))


def _names(rng: random.Random) -> Iterator[Case]:
    """All files are asked for, these among them."""
    bad = ["../x", "../../../../x", "/etc/x", "a/../../x", "a//b", "a/", "./a", ".", "..", "",
           "a\0b", "a\nb", "a\rb", "a\x1b[2Jb", "a\\..\\b", "\ud800", "a\udfffb", " a", "a ",
           "x" * 300, "y/" * 600 + "z", ".git/config", "sub/.GIT/hooks/x", "a\u202eb", "a\u2028b",
           FILE + "/below", 3, None, [], FILE]  # fmt: skip
    for _ in range(20):
        part = rng.choice(("..", ".", "", "\x07", "\\", "\ud83d", " "))
        bad.append(
            "/".join(rng.sample(["a", "b.json", "c", part], 4)) + rng.choice(("", "/" + part))
        )
    for i, name in enumerate(bad):
        if isinstance(name, str) and name == "a/b.json/c/ ":
            continue
        yield Case(f"name {i}", listing=_named(name))  # type: ignore[arg-type]
    alike = (("A.json", "a.json"), ("\u00e9.json", "e\u0301.json"), ("a/B", "A/b"),
             ("stra\u00dfe", "STRASSE"), ("a/b", "A"))  # fmt: skip
    for i, twins in enumerate(alike):
        yield Case(f"twins {i}", listing=_named(*twins))
    for i, name in enumerate(("con", "NUL.txt", "aux", "-rf", "~", "$HOME", "%2e%2e%2fx", "a?b#c",
                              "模型/文件 (1).json", "e\u0301", "c:x")):  # fmt: skip
        yield Case(f"odd name {i}", listing=_named(name), well=True)


def _bodies(rng: random.Random) -> Iterator[Case]:
    junk = rng.randbytes(3000)
    deep = b"[" * 200_000
    for i, body in enumerate((
        HTML, b"", b"[", b"[]", b"null", b"5", b'"x"', deep, b'{"a":' * 100_000, junk,
        b"\xff\xfe{}", b'{"sha": ' + b"9" * 10_000 + b"}", b'{"sha": NaN}',
        b" " * (9 << 20), b'{"a":1}' * 3, b"[" + b"[]," * (3 << 20) + b"[]]",
    )):  # fmt: skip
        yield Case(f"body {i}", listing=lambda _, body=body: body)
    for i in range(8):  # a bit of it is another
        at = rng.randrange(1 << 30)

        def cut(listing: Listing, at: int = at) -> bytes:
            body = json.dumps(listing).encode()
            return body[: at % len(body)]

        yield Case(f"cut {i}", listing=cut)


def sent(name: str, send: Callable[[Handler, bytes], None]) -> Case:
    """How a listing is sent."""
    return Case(f"sent {name}", send_listing=send)


def _transport(rng: random.Random) -> Iterator[Case]:
    """Statuses, waits, lengths, encodings and redirects of a listing."""
    refusals = (204, 205, 300, 304, 400, 401, 402, 403, 404, 410, 418, 451, 500, 502, 503, 599)
    for status in (*refusals, 999):
        yield sent(f"{status}", lambda h, b, s=status: reply(h, s, {"Content-Length": "2"}, b"[]"))
    for i, after in enumerate(
        (
            "1000000000",
            "-5",
            "inf",
            "nan",
            "9" * 400,
            "x",
            "1e9",
            "²",
            "Wed, 21 Oct 2035 07:28:00 GMT",
            str(rng.randrange(301, 10**6)),
        )
    ):
        headers = {"Retry-After": after, "Content-Length": "0",
                   "RateLimit": '"api";r=0;t=1000000000'}  # fmt: skip
        yield sent(f"wait {i}", lambda h, b, x=headers: reply(h, 429, x))
    yield sent("error list", lambda h, b: reply(h, 403, {"Content-Length": "4"}, b"[[]]"))
    yield sent("endless error", lambda h, b: drip(h, b"HTTP/1.1 403 X\r\n\r\n", b"x"))
    yield sent("length above", lambda h, b: whole(h, b, Content_Length=str(len(b) + 9)))
    yield sent("length below", lambda h, b: whole(h, b, Content_Length=str(len(b) - 9)))
    yield sent("length no number", lambda h, b: whole(h, b, Content_Length="many"))
    yield sent("length negative", lambda h, b: whole(h, b, Content_Length="-1"))
    yield sent("length huge", lambda h, b: whole(h, b, Content_Length="9" * 30))
    yield sent("bomb", lambda h, b: whole(h, BOMB, Content_Encoding="gzip"))
    yield sent("brotli", lambda h, b: whole(h, b, Content_Encoding="br"))
    targets = ("?", "/loop", "", "//", "http://", "file:///etc/passwd", "gopher://x/",
               "http://[::1", "http://127.0.0.1:99999/", "http://\udcff/", "http://a b/",
               "http://127.0.0.1:1/", "\\\\host\\share")  # fmt: skip
    for i, to in enumerate(targets):
        location = {
            "Location": to.encode("utf-8", "surrogateescape").decode("latin-1"),
            "Content-Length": "0",
        }
        yield sent(f"redirect {i}", lambda h, b, x=location: reply(h, 307, x))
    yield sent("redirect nowhere", lambda h, b: reply(h, 302, {"Content-Length": "0"}))
    yield sent(
        "redirect itself", lambda h, b: reply(h, 302, {"Location": h.path, "Content-Length": "0"})
    )


def _streams(rng: random.Random) -> Iterator[Case]:
    """A listing that comes slowly, or is no HTTP."""
    junk = rng.randbytes(500)
    yield sent("slow body", lambda h, b: drip(h, b"HTTP/1.1 200 X\r\n\r\n{", b" "))
    yield sent("slow header", lambda h, b: drip(h, b"HTTP/1.1 200 X\r\nA: ", b"x"))
    yield sent("slow status", lambda h, b: drip(h, b"HTTP/1.1 200 ", b"x"))
    yield sent("ever continue", lambda h, b: drip(h, b"", b"HTTP/1.1 100 Continue\r\n\r\n"))
    yield sent(
        "slow chunk",
        lambda h, b: drip(h, b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    )
    yield sent(
        "bad chunk",
        lambda h, b: whole_raw(h, b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    )
    yield sent("long header", lambda h, b: whole(h, b, A="x" * 300_000))
    yield sent("no http", lambda h, b: whole_raw(h, junk))
    yield sent("nothing", lambda h, b: whole_raw(h, b""))
    yield sent("nul header", lambda h, b: whole_raw(h, b"HTTP/1.1 200 X\r\nA: \0\r\n\r\n" + b))


def file_sent(name: str, send: Callable[[Handler, bytes], None], well: bool = False) -> Case:
    """What comes for the file, under an honest listing."""
    return Case(f"file {name}", send_file=send, well=well)


def _ids() -> Iterator[Case]:
    """What the library takes names of files and folders from."""

    up = "../../../../x"
    for i, etag in enumerate(
        (f'"{up}"', up, f'W/"{up}"', '"/tmp/x"', "", '"a/b"', '".."', '"' + "a" * 300 + '"')
    ):
        yield file_sent(
            f"etag {i}", lambda h, b, e=etag: whole(h, b, ETag=e, X_Repo_Commit="a" * 40), well=True
        )
        yield file_sent(f"linked etag {i}", lambda h, b, e=etag: whole(
            h, b, ETag='"a"', X_Linked_Etag=e, X_Repo_Commit="a" * 40), well=True)  # fmt: skip
        yield file_sent(
            f"commit {i}", lambda h, b, e=etag: whole(h, b, ETag='"a"', X_Repo_Commit=e), well=True
        )
        missing = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": etag, "Content-Length": "0"}
        yield file_sent(f"missing {i}", lambda h, b, x=missing: reply(h, 404, x))

    honest = {"ETag": f'"{"b" * 64}"', "X_Repo_Commit": "a" * 40}
    wrong = {"ETag": f'"{up}"', "X_Repo_Commit": up, "X_Linked_Size": "1"}
    turns = itertools.cycle((honest, wrong))

    def another_each_time(h: Handler, body: bytes) -> None:
        whole(h, body, **next(turns))

    yield file_sent("another each time", another_each_time, well=True)
    yield file_sent("xet", lambda h, b: whole(
        h, b, ETag='"a"', X_Repo_Commit="a" * 40, X_Xet_Hash="c" * 64,
        X_Xet_Refresh_Route="http://127.0.0.1:1/", X_Linked_Size="5000"), well=True)  # fmt: skip


def _files(rng: random.Random) -> Iterator[Case]:
    """Bodies, lengths, parts and refusals."""
    yield file_sent("warning", lambda h, b: whole(h, b, X_HF_Warning="a; \x1b[2Jb"), well=True)
    yield file_sent("html", lambda h, b: whole(h, HTML))
    yield file_sent("html of that size", lambda h, b: whole(h, HTML.ljust(len(b))))
    yield file_sent("html no length", lambda h, b: reply(h, 200, {}, HTML))
    yield file_sent("empty", lambda h, b: whole(h, b""))
    for i in range(12):
        at, bit = rng.randrange(SIZE), 1 << rng.randrange(8)

        def flip(h: Handler, body: bytes, at: int = at, bit: int = bit) -> None:
            changed = bytearray(body)
            changed[at] ^= bit
            whole(h, bytes(changed))

        yield file_sent(f"flipped {i}", flip)
        n = rng.randrange(1, SIZE)
        yield file_sent(f"short {i}", lambda h, b, n=n: whole(h, b[:n]))
        yield file_sent(f"long {i}", lambda h, b, n=n: whole(h, b + bytes(n)))
        yield file_sent(f"cut {i}", lambda h, b, n=n: whole(h, b[:n], Content_Length=str(SIZE)))
    yield file_sent("endless", lambda h, b: endless(h))
    yield file_sent("bomb", lambda h, b: whole(h, gzip.compress(b), Content_Encoding="gzip"))
    for i, part in enumerate(
        ("bytes 7-99/100", "bytes x", "", "bytes */*", "bytes -1-5/6", "x" * 5000)
    ):
        yield file_sent(f"part {i}", lambda h, b, p=part: reply(
            h, 206, {"Content-Range": p, "Content-Length": str(len(b))}, b))  # fmt: skip
    yield file_sent("slow", lambda h, b: drip(h, b"HTTP/1.1 200 X\r\n\r\nGGUF", b"\0"))
    yield file_sent("slow header", lambda h, b: drip(h, b"HTTP/1.1 200 X\r\nA: ", b"x"))
    for status in (204, 206, 304, 400, 401, 403, 404, 416, 500, 503):
        yield file_sent(
            f"status {status}", lambda h, b, s=status: reply(h, s, {"Content-Length": "0"})
        )
    yield file_sent(
        "redirect itself", lambda h, b: reply(h, 302, {"Location": h.path, "Content-Length": "0"})
    )
    yield file_sent(
        "redirect file",
        lambda h, b: reply(h, 302, {"Location": "file:///etc/passwd", "Content-Length": "0"}),
    )
    yield file_sent(
        "wait", lambda h, b: reply(h, 429, {"Retry-After": "1000000000", "Content-Length": "0"})
    )
