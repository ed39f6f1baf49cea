"""The servers behind a proxy, asked every few seconds whether they are there and what they read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx
import msgspec
from starlette.datastructures import Headers

from ..wire.errors import ApiError

POLL_SECONDS, PATIENCE_SECONDS = 2.0, 5.0
"""Between two questions, and for an answer to one. A server is left out until it answers."""
STUCK_SECONDS = 30.0
"""A server that has answered no question for so long is stuck: what it was asked goes elsewhere, or
ends. Requests alone tell nothing: reading a long prompt takes an hour, without a word."""
NO_ANSWER = (httpx.RequestError, TimeoutError)
NO_SERVER = "no server is ready: try again later; /health says more"
MOST_SENT, MOST_KEYS = 1 << 16, 1 << 10
"""What is remembered: beginnings of what was sent to a server, and keys that servers took."""
_NO_KEY = "it does not say what it has read without a key: give --api-key KEY"
_REFUSED = "it refuses the key of --api-key, and does not say what it has read"
_WRONG_KEY = "no key of the servers: send Authorization: Bearer KEY, or x-api-key: KEY"
_STUCK = "it answers nothing any more"
MOST_AHEAD = 8
"""A server that answers so many more requests than another gets no more, whatever it has read."""


@dataclass(eq=False)
class Replica:
    """A server. state: "ok", or why it is left out. tells: whether it knows the question for
    beginnings (with a key, perhaps): others would answer the request. held: digests of what it says
    that it has read; sent: of what was sent to it. limits: of the requests that it answers for us.
    """

    url: str
    state: str = "not asked yet"
    tells: bool = False
    held: frozenset[str] = frozenset()
    sent: OrderedDict[str, None] = field(default_factory=OrderedDict)
    limits: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        return self.state == "ok"

    def n_held(self, digests: Sequence[str]) -> int:
        """How many of a prompt's beginnings, the shortest first, it has read or is reading."""
        known = [one in self.held or one in self.sent for one in digests]
        return max((n for n, one in enumerate(known, 1) if one), default=0)

    def remember(self, digests: Sequence[str]) -> None:
        for digest in digests:
            self.sent[digest] = None
            self.sent.move_to_end(digest)
        while len(self.sent) > MOST_SENT:
            self.sent.popitem(last=False)

    def leave_out(self, reason: str) -> None:
        """Until it answers again; what it was reading may be lost."""
        self.state = reason
        self.sent.clear()

    def limit(self, seconds: float | None) -> None:
        """End its requests in so many seconds, if it does not answer before; None: end none."""
        for limit in self.limits:
            if seconds is None and not limit.expired():
                limit.reschedule(None)
            elif seconds is not None and limit.when() is None:
                limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def as_dict(self) -> Mapping[str, Any]:
        """For /health."""
        facts = {"url": self.url, "state": self.state}
        return facts | {"requests": len(self.limits), "beginnings": len(self.held)}


class _Digests(msgspec.Struct):
    digests: list[str]


def digests_in(answer: httpx.Response) -> list[str]:
    """Those of an answer whose body was read. Raises ValueError for anything else."""
    try:
        return msgspec.json.decode(answer.content, type=_Digests).digests
    except msgspec.DecodeError as error:
        raise ValueError(f"{answer.url} tells no digests: {error}") from error


class Replicas:
    """All servers. key: for the questions of the proxy itself, "" for none; tell: called with a
    line when a server comes or goes."""

    restarts, step, reason = 0, "", ""
    facts = None

    def __init__(self, urls: Sequence[str], key: str, tell: Callable[[str], None]) -> None:
        self.all = [Replica(url) for url in urls]
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._tell = tell
        self._polling: asyncio.Task[None] | None = None
        self._keys: set[tuple[tuple[str, str], ...]] = set()

    async def open(self) -> None:
        """Ask all of them once, and then again and again."""
        timeout = httpx.Timeout(None, connect=PATIENCE_SECONDS)
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        # What clients and servers say passes through: no header is added, no cookie kept.
        self.client.headers.clear()
        self.client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        await self._ask_all()
        self._polling = asyncio.create_task(self._poll())

    async def stop(self, seconds: float) -> None:
        """Ask no more; answers that are under way go on."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling

    def best(self, digests: Sequence[str], without: Collection[Replica] = ()) -> Replica | None:
        """The one that has read most of a prompt, of equals the least busy; None if none is ready.
        One that is much busier than others counts as if it had read nothing."""
        ready = [one for one in self.all if one.is_ready and one not in without]
        if not ready:
            return None
        most = min(len(one.limits) for one in ready) + MOST_AHEAD

        def rank(one: Replica) -> tuple[int, int]:
            return one.n_held(digests) if len(one.limits) <= most else 0, -len(one.limits)

        return max(ready, key=rank)

    @asynccontextmanager
    async def sent(
        self, one: Replica, method: str, path: str, headers: Any, body: bytes = b""
    ) -> AsyncIterator[httpx.Response]:
        """The answer of a server, whose body is not read yet. Raises `NO_ANSWER`."""
        async with asyncio.timeout(None) as limit:
            one.limits.add(limit)
            try:
                url = f"{one.url}{path}"
                asked = self.client.stream(method, url, headers=headers, content=body)
                async with asked as answer:
                    yield answer
            finally:
                one.limits.remove(limit)

    async def check_key(self, headers: Headers) -> None:
        """Ask a server whether it takes the key that headers bring, or none. Raises `ApiError` 401
        if it does not, 503 without a server."""
        names = ("authorization", "x-api-key")
        key = tuple((name, headers[name]) for name in names if name in headers)
        while key not in self._keys:
            if (one := self.best(())) is None:
                raise ApiError(503, NO_SERVER)
            try:
                async with self.sent(one, "GET", "/v1/models", key) as answer:
                    if answer.status_code == 401:
                        raise ApiError(401, _WRONG_KEY, code="invalid_api_key")
            except NO_ANSWER as error:
                self.lose(one, error)
                continue
            if len(self._keys) == MOST_KEYS:
                self._keys.clear()
            self._keys.add(key)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._ask_all()

    async def _ask_all(self) -> None:
        await asyncio.gather(*map(self._ask, self.all))

    async def _ask(self, one: Replica) -> None:
        before = one.state
        try:
            answer = await self._get(f"{one.url}/health")
            one.limit(None)
            if answer.status_code == 200:
                one.state = "ok"
                held = await self._get(f"{one.url}/beginnings")
                one.tells = held.status_code in (200, 401)
                if held.status_code == 200:
                    one.held = frozenset(digests_in(held))
                elif held.status_code == 401 and before != "ok":
                    self._tell(f"{one.url}: {_REFUSED if self._headers else _NO_KEY}")
            else:
                one.leave_out(f"it answers {answer.status_code} at /health")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            one.leave_out(str(error) or type(error).__name__)
            one.limit(STUCK_SECONDS)
        if one.state != before:
            self._tell(f"{one.url}: {one.state}")

    def lose(self, one: Replica, error: Exception) -> None:
        """Leave a server out that broke off, until it answers again."""
        stuck = isinstance(error, TimeoutError)
        one.leave_out(_STUCK if stuck else str(error) or type(error).__name__)
        self._tell(f"{one.url}: {one.state}")

    async def _get(self, url: str) -> httpx.Response:
        return await self.client.get(url, headers=self._headers, timeout=PATIENCE_SECONDS)
