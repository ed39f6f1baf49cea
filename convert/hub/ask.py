"""Requests to a hub, with bounds on their time and on the size of the answer.

The session is huggingface_hub's, with its proxies, certificates and offline mode; the HTTP library
drops the token when it is redirected to another host. But its timeouts restart with every byte: a
hub that sends one now and then, in a header or in a body, would keep it waiting forever. So a
separate thread sends the request, and the caller stops waiting when the time is up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...system.text import one_line
from ..errors import HubError, HubUnreachable

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
"""The most waits, and seconds of a wait, when the hub asks kvarn to come back later."""
USUAL_WAIT = 5.0
"""Seconds to wait if the hub does not say how long."""
_LOGIN = "log in with `hf auth login` or set HF_TOKEN"
_TRANSIENT = (408, 500, 502, 503, 504)
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")
_WRONG_TOKEN = "Invalid credentials in Authorization header"


@dataclass
class Answer:
    """A hub's answer: a status, headers, and a body in chunks."""

    repo: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    with_token: bool = False
    """Whether the request had a token."""
    _parts: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(64))
    _closed: threading.Event = field(default_factory=threading.Event)

    def chunks(self) -> Iterator[bytes]:
        """The body as it was sent. Raises `HubUnreachable` where it breaks off or stalls."""
        deadline, received = time.monotonic() + STALL_SECONDS, 0
        while (chunk := self._next(deadline)) is not None:
            yield chunk
            received += len(chunk)
            if received >= STALL_BYTES:
                deadline, received = time.monotonic() + STALL_SECONDS, 0

    def close(self) -> None:
        """End the thread that receives it."""
        self._closed.set()

    def ask(self, path: str, span: str) -> None:
        """Send the request, and wait until the answer begins."""
        threading.Thread(target=self._fetch, args=(path, span), daemon=True).start()
        start = self._next(time.monotonic() + STALL_SECONDS)
        self.status, self.headers, self.with_token = start

    def _next(self, deadline: float) -> Any:
        """The next part; None at the end."""
        try:
            part = self._parts.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise HubUnreachable(
                f"the hub sends nothing more for {self.repo} (less than {STALL_BYTES >> 10} KiB in "
                f"{STALL_SECONDS:g} s): try again later"
            ) from None
        if isinstance(part, BaseException):
            raise _failure(self.repo, part) from part
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
        """Pass a part to the caller; False once it has closed the answer."""
        while not self._closed.is_set():
            try:
                self._parts.put(part, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False


@contextmanager
def open_answer(
    repo: str, path: str, notice: Notice, start: int = 0, stop: int = 0
) -> Iterator[Answer]:
    """The hub's answer for a path, with the status of success.

    start, stop: the bytes start … stop - 1 (default: all). Raises `HubError` for a refusal; waits
    and asks again where the hub says so.
    """
    span = f"bytes={start}-{stop - 1}" if stop else ""
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
                raise _refusal(answer)
        notice(f"the hub is asked too often; going on in {seconds:g} s")
        time.sleep(seconds)


def read_whole(repo: str, path: str, limit: int, notice: Notice) -> bytes:
    """The body of a small answer; `HubError` where it is larger than `limit` bytes or too slow."""
    deadline, body = time.monotonic() + LISTING_SECONDS, bytearray()
    with open_answer(repo, path, notice) as answer:
        for chunk in answer.chunks():
            body += chunk
            if len(body) > limit:
                raise HubError(f"the hub's answer for {repo} is larger than {limit >> 20} MiB")
            if time.monotonic() > deadline:
                raise HubUnreachable(
                    f"the hub takes more than {LISTING_SECONDS:g} s to answer for {repo}: try "
                    "again later"
                )
    return bytes(body)


def _headers() -> dict[str, str]:
    """Headers of each request. (With the library's own, it asks the hub which environment
    variables to look at, and sends them.)
    """
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN

    # Not compressed: such a body can grow without limit, and has another checksum.
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


def _refusal(answer: Answer) -> HubError:
    """The error for a status other than success: what it means, and what to do."""
    from huggingface_hub.constants import ENDPOINT

    repo, status, headers = answer.repo, answer.status, answer.headers
    page, code = f"{ENDPOINT}/{repo}", headers.get("X-Error-Code")
    if code == "GatedRepo" and not answer.with_token:
        return HubError(f"{repo} is gated: accept its terms at {page}, then {_LOGIN}")
    if code == "GatedRepo":
        return HubError(f"{repo} is gated and your account has no access: ask for it at {page}")
    if code == "RevisionNotFound":
        return HubError(f"{repo} has no such --revision; see {page}/commits")
    if status == 401 and headers.get("X-Error-Message") == _WRONG_TOKEN:
        return HubError(f"the hub does not know your token: {_LOGIN}")
    if code == "EntryNotFound":
        return HubError(f"the hub lists a file of {repo} and does not have it: try again later")
    if code == "RepoNotFound" or status in (401, 404):
        return HubError(
            f"there is no repository {repo} at {ENDPOINT}, or it is private: check the name, or "
            f"{_LOGIN}"
        )
    if status == 403:
        return HubError(
            f"your token may not read {repo}: give it that right, or {_LOGIN} with another"
        )
    if status == 429:
        return HubError("the hub is asked too often from this machine: try again in some minutes")
    kind = HubUnreachable if status in _TRANSIENT else HubError
    return kind(f"the hub answers {status} for {repo}: try again later")


def _failure(repo: str, error: BaseException) -> HubError:
    """The error for an exception of the HTTP library or of the library around it."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return HubUnreachable("the hub is out of reach: HF_HUB_OFFLINE is set")
    reason = one_line(str(error), 120) or type(error).__name__
    if type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES:
        return HubUnreachable(f"cannot reach {ENDPOINT}: {reason}; try again later")
    # The library parses the answer and fails on some: any such error is the hub's.
    return HubError(
        f"the hub's answer for {repo} cannot be read ({type(error).__name__}: {reason})"
    )
