"""`kvarn route`: passes requests on, each to the server that has read most of its prompt.

Servers are asked again and again whether they are there, and for digests of what they have read;
one of them for those of a prompt (`beginnings.py`): this process has no tokenizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from .beginnings import BEGINNINGS, ONLY, digests_in
from .service import Service
from .wire.bodies import read_body
from .wire.errors import ApiError
from .wire.guard import GIVE_KEY, Guard
from .wire.passing import end_to_end, path_of
from .wire.streams import send_chunks, while_connected

POLL_SECONDS = 2.0  # between two questions to a server
PATIENCE_SECONDS = 5.0  # for its answer to one, and for a connection
STUCK_SECONDS = 30.0  # without one, until its requests end: they may be silent for an hour
MOST_AHEAD = 8  # requests that a server may be busier than another, whatever it has read
MOST_SENT = 1 << 16  # digests that are remembered of what was sent to a server
MOST_KEYS = 1024  # of requests that servers took: without keys of their own, they take any
LEAST_BYTES = 1024  # of a request with 1,024 tokens, unless it names a pack
ELSEWHERE = (404, 429, 503)  # another server may answer otherwise: it has the pack, or room


@dataclass(eq=False)
class Replica:
    """A server. state: "ok", or why it is left out; answered_at: when it last answered a question.
    gives_digests: whether it is a kvarn that has them; held: those of what it has read; sent: those
    of what was sent to it. limits: of the requests that it answers."""

    url: str
    state: str = "not asked yet"
    answered_at: float = 0.0
    gives_digests: bool = False
    held: frozenset[str] = frozenset()
    sent: set[str] = field(default_factory=set)
    limits: set[asyncio.Timeout] = field(default_factory=set)

    def rank(self, digests: Sequence[str]) -> tuple[int, int]:
        """The highest has read, or is reading, most of a prompt; of equals it is the least busy."""
        known = [n for n, one in enumerate(digests, 1) if one in self.sent or one in self.held]
        return max(known, default=0), -len(self.limits)


class Replicas:
    """All servers. key: for questions to them, or ""; tell: called with a line of news of them."""

    def __init__(self, urls: Sequence[str], key: str, tell: Callable[[str], None]) -> None:
        self.all, self._tell = [Replica(url) for url in urls], tell
        # Requests pass without a client, which would add headers to them and keep cookies.
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(), trust_env=False)
        self._client = httpx.AsyncClient(transport=self._transport, timeout=PATIENCE_SECONDS)
        self._key = {"authorization": f"Bearer {key}"} if key else {}
        self._good_keys = set[tuple[str, ...]]()  # until one is refused, or a server comes or goes

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Ask them all, before anything else and then again and again until the end."""
        async with self._client, asyncio.TaskGroup() as group:
            are_asked = asyncio.Event()
            watch = group.create_task(self._watch(are_asked))
            await are_asked.wait()
            yield
            watch.cancel()

    async def stop(self, seconds: float) -> None:
        """As engines are told to; here, answers end by themselves."""

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, digests: Sequence[str] | None, **more: Any
    ) -> AsyncIterator[httpx.Response]:
        """The answer, its body unread, of the best server for a prompt of these digests, or of the
        next if that one does not answer. digests: None where they are what is asked for; more: as
        `httpx.Request` takes it. Raises `ApiError` 503 where none answers, or one breaks off."""
        tried = {one for one in self.all if digests is None and not one.gives_digests}
        has_begun = False
        while able := [one for one in self.all if one.state == "ok" and one not in tried]:
            most = min(len(one.limits) for one in able) + MOST_AHEAD
            free = [one for one in able if len(one.limits) <= most]
            one = max(free, key=lambda one: one.rank(digests or ()))
            tried.add(one)
            request = httpx.Request(method, one.url + path, **more)
            request.extensions["timeout"] = {"connect": PATIENCE_SECONDS}
            try:
                async with asyncio.timeout(None) as limit:
                    one.limits.add(limit)
                    answer = await self._transport.handle_async_request(request)
                    async with aclosing(answer):
                        if answer.status_code in ELSEWHERE and len(able) > 1:
                            continue
                        if (n := answer.status_code) > 599:
                            raise ApiError(502, f"{one.url} answers {n}, expected at most 599")
                        if len(one.sent) > MOST_SENT:
                            one.sent.clear()
                        one.sent.update(digests or ())
                        has_begun = True
                        yield answer
                        return
            except (httpx.RequestError, TimeoutError) as error:
                self._mark(one, _reason(error))
                if has_begun:
                    raise ApiError(503, f"{one.url} ended in the middle of its answer") from error
            finally:
                one.limits.discard(limit)
        raise ApiError(503, "no server is ready: try again later; /health says more")

    async def check_key(self, request: Request, headers: Any) -> None:
        """Raises `ApiError` 401 for a request whose key a server refuses."""
        if (key := _key(request)) in self._good_keys:
            return
        async with self.forward("GET", "/v1/models", (), headers=headers) as answer:
            await answer.aread()  # which leaves its connection to the next request
            if answer.status_code == 401:
                raise ApiError(401, f"no key of the servers: {GIVE_KEY}")
        if answer.is_success:  # others may come before keys are looked at
            if len(self._good_keys) >= MOST_KEYS:
                self._good_keys.clear()
            self._good_keys.add(key)

    async def answer(self, request: Request, headers: Any, body: bytes, send: Send) -> None:
        """Send what a server answers. Raises what `path_of` and `forward` raise."""
        path = path_of(request.scope)
        more, digests = {"headers": headers, "content": body}, list[str]()
        is_long = len(body) >= LEAST_BYTES or b'"pack"' in body
        if is_long and request.method == "POST" and ONLY not in request.headers:
            only = [*headers, (ONLY.encode(), BEGINNINGS.encode())]
            with suppress(ApiError, ValueError):  # the answer itself says what is wrong
                async with self.forward("POST", path, None, **more | {"headers": only}) as answer:
                    digests = digests_in(await answer.aread())
        async with self.forward(request.method, path, digests, **more) as answer:
            head = {"status": answer.status_code, "headers": end_to_end(answer.headers.raw)}
            if answer.status_code == 401:
                self._good_keys.discard(_key(request))
            await send({"type": "http.response.start", **head})
            await send_chunks(send, answer.aiter_raw())

    async def _watch(self, are_asked: asyncio.Event) -> None:
        while True:
            await asyncio.gather(*map(self._ask, self.all))
            are_asked.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, one: Replica) -> None:
        """Whether it is there, and what it has read. What was asked of a stuck one ends."""
        try:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):  # bodies may come byte by byte
                health = await self._client.get(f"{one.url}/health", headers=self._key)
                one.answered_at = monotonic()
                if health.status_code != 200:
                    raise ValueError(f"it answers {health.status_code} at /health")
                response = await self._client.get(f"{one.url}/beginnings", headers=self._key)
                if response.status_code == 401 and one.state != "ok":
                    why = "refuses the key of" if self._key else "wants a key: give"
                    line = f"it {why} --api-key KEY, so kvarn does not know what it has read"
                    self._tell(f"{one.url}: {line}")
                one.gives_digests = response.status_code in (200, 401)
                one.held = frozenset(
                    digests_in(response.content) if response.status_code == 200 else ()
                )
                self._mark(one, "ok")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            self._mark(one, _reason(error))
            is_stuck = monotonic() > one.answered_at + STUCK_SECONDS
            for limit in [limit for limit in one.limits if is_stuck and not limit.expired()]:
                limit.reschedule(0)

    def _mark(self, one: Replica, state: str) -> None:
        """Tell when a server comes or goes. One that goes may lose what it was reading."""
        if state != "ok":
            one.sent.clear()
        if state != one.state:
            self._tell(f"{one.url}: {state}")
            self._good_keys.clear()
        one.state = state


def proxy(service: Service, replicas: Replicas) -> Guard:
    """The ASGI application over these servers, which are watched from its start to its end."""

    async def health(request: Request) -> JSONResponse:
        """200 while a server is ready."""
        is_ready = any(one.state == "ok" for one in replicas.all)
        status = "stopping" if service.is_stopping else "ok" if is_ready else "no server is ready"
        servers = [
            {"url": one.url, "state": one.state}
            | {"requests": len(one.limits), "beginnings": len(one.held)}
            for one in replicas.all
        ]
        answer = {"status": status, "requests": service.n_requests - 1, "servers": servers}
        return JSONResponse(answer, 200 if status == "ok" else 503)

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = end_to_end(request.headers.raw)
        if {"content-length", "transfer-encoding"} & {*request.headers}:  # a stranger's, perhaps
            await replicas.check_key(request, headers)
        body = await read_body(request, service.settings.limits)
        await while_connected(receive, replicas.answer(request, headers, body, send))

    own = [Route("/health", health)]
    return Guard(Router(own, False, pass_on, lifespan=lambda _: replicas.watch()), service)


def _key(request: Request) -> tuple[str, ...]:
    return tuple(request.headers.get(name, "") for name in ("authorization", "x-api-key"))


def _reason(error: Exception) -> str:
    """Why a server is left out, in place of what libraries say."""
    if isinstance(error, httpx.ConnectError):
        return "it cannot be reached"
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return "it broke off its answer"
    return str(error) or "it does not answer"
