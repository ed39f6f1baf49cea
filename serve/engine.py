"""What the server asks of the engine process: `runtime/serving/client.py` does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from ..runtime.serving.protocol import (
    Done,
    PackFacts,
    Pieces,
    Progress,
    Prompt,
    Reading,
    Ready,
    Rendered,
    Vectors,
)


class Engine(Protocol):
    """A model in a process of its own. Requests raise `RequestRefused`, and are cancelled when
    nobody waits for them any more.

    state: "loading", "ready", "dead" (it starts again soon) or "stopped". step: what it loads.
    reason: of its last death. facts: the model, once it was ready.
    """

    @property
    def state(self) -> str: ...

    @property
    def step(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    @property
    def facts(self) -> Ready | None: ...

    @property
    def counters(self) -> Mapping[str, float]: ...

    @property
    def notices(self) -> Sequence[str]: ...

    async def open(self) -> None: ...

    async def stop(self, seconds: float) -> None: ...

    def generate(
        self, prompt: Prompt, **fields: Any
    ) -> AsyncIterator[Progress | Pieces | Done]: ...

    def read_pack(
        self, name: str, text: str, reading: Reading | None = None
    ) -> AsyncIterator[Progress | Pieces | Done]: ...

    async def render(
        self, prompt: Prompt, with_ids: bool = False, alone: bool = False
    ) -> Rendered: ...

    async def beginnings(
        self, prompt: Prompt | None = None, reading: Reading | None = None
    ) -> list[str]: ...

    async def embed(self, prompts: list[Prompt], truncate: bool = False) -> Vectors: ...

    async def packs(self) -> list[PackFacts]: ...

    async def remove_pack(self, name: str) -> list[PackFacts]: ...

    async def remember(self, id: int, message: dict[str, Any]) -> None: ...
