"""A real engine process, and what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.serving.client import EngineClient
from kvarn.runtime.serving.prompt import Prompt, Text
from kvarn.runtime.serving.protocol import Done, Pieces, Progress, Start

T = TypeVar("T")

GREEDY = {"temp": 0.0}


@dataclass
class Answer:
    """All that came for one request."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    pieces: list[Pieces] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    done: Done | None = None

    def add(self, message: Progress | Pieces | Done) -> None:
        if isinstance(message, Pieces):
            self.text += message.text
            self.tokens += message.tokens
            self.pieces.append(message)
        elif isinstance(message, Progress):
            self.progress.append(message)
        else:
            self.done = message


@dataclass
class Live:
    """An engine with its client, in an event loop of its own."""

    client: EngineClient
    runner: asyncio.Runner
    lines: list[str]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 120))

    async def answer(self, prompt: Prompt | str, **fields: Any) -> Answer:
        """The whole answer to a prompt."""
        answer = Answer()
        prompt = Text(prompt) if isinstance(prompt, str) else prompt
        async for message in self.client.generate(prompt, **fields):
            answer.add(message)
        return answer


def start_of(folder: Path, **changes: Any) -> Start:
    """A first message for the default model."""
    settings = {
        "model": str(default_model_path()),
        "n_ctx": 2048,
        "parallel": 4,
        "threads": 1,
        "cancel_path": "",
        "cache_path": str(folder),
        "cache_bytes": 0,
    }
    return Start(**{**settings, **changes})


async def settled(client: EngineClient) -> None:
    """Wait until the engine is ready, or cannot start."""
    while client.state == "loading":
        await asyncio.sleep(0.01)


@contextmanager
def live(start: Start, is_ready: bool = True) -> Iterator[Live]:
    """An engine that runs as long as the block."""
    lines: list[str] = []
    with asyncio.Runner() as runner:
        client = EngineClient(start, lines.append)
        running = Live(client, runner, lines)
        running.run(client.open())
        try:
            if is_ready:
                running.run(settled(client))
                assert client.state == "ready", client.reason
            yield running
        finally:
            running.run(client.stop(0.0))
