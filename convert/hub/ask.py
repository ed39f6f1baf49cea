"""Requests to a hub, with bounds on their time and on the size of the answer.

The session is huggingface_hub's, with its proxies, certificates and offline mode; the HTTP library
drops the token when it is redirected to another host. Its timeouts restart with every byte: a hub
that sends one now and then, in a header or in a body, would keep it waiting forever. So a separate
thread sends the request, and the caller stops waiting for that thread when the time is up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import HubError, HubOutOfReach
from .explain import failure, refusal

Notice = Callable[[str], None]

STALL_SECONDS = 60.0
STALL_BYTES = 64 << 10
"""An answer must begin within STALL_SECONDS, and bring STALL_BYTES, or end, in each such time."""
LISTING_SECONDS = 120.0
"""For the whole of an answer that is read at once."""
SILENCE_SECONDS = 30.0
"""Between two bytes: ends the thread that nobody waits for any more."""
MAX_WAITS = 4
MAX_WAIT = 300.0
"""How often, and for at most how many seconds each time, kvarn waits when the hub asks it to."""
USUAL_WAIT = 5.0
"""Seconds to wait if the hub does not say how long."""


@dataclass
class Answer:
    """What a hub sends: a status, headers, and a body that comes in chunks."""

    repo: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    with_token: bool = False
    """Whether it was asked for with a token."""
    _parts: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(64))
    _given_up: threading.Event = field(default_factory=threading.Event)

    def chunks(self) -> Iterator[bytes]:
        """The body as it was sent. Raises `HubOutOfReach` where it breaks off or stands still."""
        until, received = time.monotonic() + STALL_SECONDS, 0
        while (chunk := self._next(until)) is not None:
            yield chunk
            received += len(chunk)
            if received >= STALL_BYTES:
                until, received = time.monotonic() + STALL_SECONDS, 0

    def close(self) -> None:
        """Take nothing more from it."""
        self._given_up.set()

    def ask(self, path: str, span: str) -> None:
        """Start asking, and wait until the answer begins."""
        threading.Thread(target=self._fetch, args=(path, span), daemon=True).start()
        head = self._next(time.monotonic() + STALL_SECONDS)
        self.status, self.headers, self.with_token = head

    def _next(self, until: float) -> Any:
        """The next part; None at the end."""
        try:
            part = self._parts.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise HubOutOfReach(
                f"the hub sends nothing more for {self.repo} (less than {STALL_BYTES >> 10} KiB in "
                f"{STALL_SECONDS:g} s): try again later"
            ) from None
        if isinstance(part, BaseException):
            raise failure(self.repo, part) from part
        return part

    def _fetch(self, path: str, span: str) -> None:
        """In a thread: puts status and headers, then chunks, then None; or the error."""
        from huggingface_hub.constants import ENDPOINT
        from huggingface_hub.utils import get_session

        try:
            headers = _headers() | ({"Range": span} if span else {})
            with get_session().stream(
                "GET",
                f"{ENDPOINT}/{path}",
                headers=headers,
                timeout=SILENCE_SECONDS,
                follow_redirects=True,
            ) as response:
                self._put((response.status_code, response.headers, "Authorization" in headers))
                for chunk in response.iter_raw():
                    if not self._put(chunk):
                        return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, part: object) -> bool:
        """Whether the caller took it; it does not once it has stopped waiting."""
        while not self._given_up.is_set():
            try:
                self._parts.put(part, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False


@contextmanager
def asked(repo: str, path: str, notice: Notice, start: int = 0, end: int = 0) -> Iterator[Answer]:
    """The hub's answer for a path of it, which is what was asked for and no refusal.

    start, end: the first byte and the one behind the last; all of it where they are zero. Raises
    `HubError` for a refusal, after some patience where the hub asks for that.
    """
    span = f"bytes={start}-{end - 1}" if end else ""
    for attempt in range(MAX_WAITS + 1):
        with closing(Answer(repo)) as answer:
            answer.ask(path, span)
            if answer.status in (200, 206):
                if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise HubError(f"the hub sends {repo} compressed, which it was asked not to do")
                yield answer
                return
            seconds = _wait_asked_for(answer) if attempt < MAX_WAITS else None
            if seconds is None:
                raise refusal(repo, answer.status, answer.headers, answer.with_token)
        notice(f"the hub is asked too often; going on in {seconds:g} s")
        time.sleep(seconds)


def read_whole(repo: str, path: str, limit: int, notice: Notice) -> bytes:
    """The body of a small answer; `HubError` where it is larger than `limit` bytes or too slow."""
    until, body = time.monotonic() + LISTING_SECONDS, bytearray()
    with asked(repo, path, notice) as answer:
        for chunk in answer.chunks():
            body += chunk
            if len(body) > limit:
                raise HubError(f"the hub's answer for {repo} is larger than {limit >> 20} MiB")
            if time.monotonic() > until:
                raise HubOutOfReach(
                    f"the hub takes more than {LISTING_SECONDS:g} s to answer for {repo}: try "
                    "again later"
                )
    return bytes(body)


def _headers() -> dict[str, str]:
    """Of each request. The library's own make it ask the hub which of the environment's variables
    to look at, and tell it what they are.
    """
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN

    # As it is: a compressed body can grow without limit, and has another checksum.
    headers = {"User-Agent": "kvarn", "Accept-Encoding": "identity"}
    if not HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _wait_asked_for(answer: Answer) -> float | None:
    """Seconds of a 429's Retry-After; None for anything else, and for what takes too long."""
    if answer.status != 429:
        return None
    text = answer.headers.get("Retry-After", "")
    seconds = float(text) if text.isdecimal() else USUAL_WAIT
    return seconds if seconds <= MAX_WAIT else None
