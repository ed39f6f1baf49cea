"""The servers behind a proxy, asked every few seconds whether they are there and what they read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx
import msgspec

POLL_SECONDS, PATIENCE_SECONDS = 2.0, 5.0
"""Between two questions, and for an answer to one. A server is left out until it answers."""
MOST_SENT = 1 << 16
"""Beginnings that are remembered of what was sent to a server."""
_NO_KEY = "it does not say what it has read without a key: give --api-key KEY"
_REFUSED = "it refuses the key of --api-key, and does not say what it has read"
MOST_AHEAD = 8
"""A server that answers so many more requests than another gets no more, whatever it has read."""


@dataclass(eq=False)
class Replica:
    """A server. state: "ok", or why it is left out. n_requests: those that it answers for us.
    tells: whether it knows the question for beginnings (with a key, perhaps): others would answer
    the request. held: digests of what it says that it has read; sent: of what was sent to it."""

    url: str
    state: str = "not asked yet"
    n_requests: int = 0
    tells: bool = False
    held: frozenset[str] = frozenset()
    sent: OrderedDict[str, None] = field(default_factory=OrderedDict)

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
        most = min(one.n_requests for one in ready) + MOST_AHEAD

        def rank(one: Replica) -> tuple[int, int]:
            return one.n_held(digests) if one.n_requests <= most else 0, -one.n_requests

        return max(ready, key=rank)

    def told(self) -> list[Mapping[str, Any]]:
        """For /health."""
        return [
            {
                "url": one.url,
                "state": one.state,
                "requests": one.n_requests,
                "beginnings": len(one.held),
            }
            for one in self.all
        ]

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
        if one.state != before:
            self._tell(f"{one.url}: {one.state}")

    def lose(self, one: Replica, error: Exception) -> None:
        """Leave a server out that broke off, until it answers again."""
        one.leave_out(str(error) or type(error).__name__)
        self._tell(f"{one.url}: {one.state}")

    async def _get(self, url: str) -> httpx.Response:
        return await self.client.get(url, headers=self._headers, timeout=PATIENCE_SECONDS)
