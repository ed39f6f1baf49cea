"""`kvarn route` over servers of tests, and what it is asked."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from kvarn.serve.route import Replicas, proxy
from kvarn.serve.running import listen, server
from kvarn.serve.service import Service
from kvarn.serve.settings import Limits
from kvarn.serve.wire.log import Log

from .live import SETTINGS

LONG = "The mill stood by the river, and the wheel turned. " * 40


CHAT: Any = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3}


SHORT: Any = {"messages": [{"role": "user", "content": "Hello"}]}


@contextmanager
def routing(
    urls: Sequence[str], key: str = "", tell: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[httpx.Client, Replicas]]:
    """A proxy of these servers that listens on the loopback."""
    settings = replace(SETTINGS, parallel=64, limits=Limits(stop_seconds=1))
    behind = Replicas(urls, key, tell)
    listener = listen("127.0.0.1", 0)
    running = server(Service(settings, behind, Log("text")), lambda it: proxy(it, behind))
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    port = listener.getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, behind
    finally:
        running.handle_exit(0, None)
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def known(client: httpx.Client) -> list[int]:
    """How many beginnings each server is known to have read."""
    return [one["beginnings"] for one in client.get("/health").json()["servers"]]
