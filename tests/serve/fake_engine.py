"""An engine that answers at once, as a test says it should; no model, no process. Messages are
encoded as for a real one, and dropped."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvarn.runtime.chat.replies import Logprob
from kvarn.runtime.lens.passages import Lens
from kvarn.runtime.serving.calls import RequestRefused
from kvarn.runtime.serving.prompt import Chat, Prompt, Reading, Text
from kvarn.runtime.serving.protocol import (
    Done,
    Embed,
    FindBeginnings,
    Generate,
    PackFacts,
    Pieces,
    Progress,
    Ready,
    Refused,
    Render,
    Rendered,
    Vectors,
)

FACTS = Ready(
    "Toy", "/models/toy.gguf", 4096, 8192, 300, 4, 1000, 2000, "llama", "{{ messages }}", "Q4_1"
)


@dataclass
class FakeEngine:
    """answer: the pieces of each answer. refusal: of every request. asked: all prompts and fields.
    pause: seconds before each piece; reading: before the first. cancelled: answers that were not
    read to the end. lens: of answers whose request asks for one."""

    answer: list[str] = field(default_factory=lambda: ["Hel", "lo", "!"])
    refusal: Refused | None = None
    pause: float = 0.0
    reading: float = 0.0
    n_cached: int = 2
    finish: str = "eos"
    stop_text: str = ""
    state: str = "ready"
    step: str = "weights"
    reason: str = ""
    restarts: int = 0
    facts: Ready | None = FACTS
    counters: dict[str, float] = field(default_factory=lambda: {"prompt_tokens": 7.0})
    notices: list[str] = field(default_factory=list)
    asked: list[tuple[Prompt, dict[str, Any]]] = field(default_factory=list)
    remembered: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    readings: list[Reading | None] = field(default_factory=list)
    cancelled: int = 0
    lens: Lens = field(default_factory=Lens)
    stopped: float | None = None
    held: list[str] = field(default_factory=list)

    async def open(self) -> None: ...

    async def stop(self, seconds: float) -> None:
        self.stopped = seconds

    async def generate(
        self, prompt: Prompt, **fields: Any
    ) -> AsyncIterator[Progress | Pieces | Done]:
        self.asked.append((prompt, fields))
        id, complete = len(self.asked), False
        try:
            msgspec.msgpack.encode(Generate(id, 0, prompt, **fields))
            if self.refusal is not None:
                raise RequestRefused(self.refusal)
            yield Progress(id, self.n_cached, 10, self.n_cached)
            await asyncio.sleep(self.reading)
            yield Progress(id, 10, 10, self.n_cached)
            pieces = self.answer[: fields.get("max_tokens") or len(self.answer)]
            for i, piece in enumerate(pieces):
                await asyncio.sleep(self.pause)
                shown = piece.encode()
                logprobs = [Logprob(i, shown, -0.5, [(i, shown, -0.5), (9, b"z", -2.0)])]
                wants = "n_probs" in fields["sampling"]
                yield Pieces(id, piece, [i], logprobs if wants else [])
            finish = self.finish if len(pieces) == len(self.answer) else "length"
            complete = True
            counts = 10, self.n_cached, len(pieces)
            lens = self.lens if fields["lens"] else None
            yield Done(id, finish, *counts, self.stop_text, 0.5, 0.25, lens)
        finally:
            self.cancelled += not complete

    async def read_pack(
        self, name: str, text: str, reading: Reading | None = None
    ) -> AsyncIterator[Progress | Pieces | Done]:
        if self.refusal is not None:
            raise RequestRefused(self.refusal)
        yield Progress(1, 0, len(text), 0)
        yield Progress(1, len(text), len(text), 0)
        self.stored[name] = len(text)
        self.texts[name] = text
        self.readings.append(reading)
        yield Done(1, "stop", len(text))

    async def render(self, prompt: Prompt, with_ids: bool = False, alone: bool = False) -> Rendered:
        msgspec.msgpack.encode(Render(1, prompt))
        if isinstance(prompt, list):
            if max(prompt) > 255:
                raise RequestRefused(Refused(1, "invalid", "an id is outside the vocabulary"))
            return Rendered(1, bytes(prompt).decode("latin-1"), len(prompt), prompt)
        if isinstance(prompt, Text):
            text = prompt.text
        else:
            assert isinstance(prompt, Chat)
            text = "".join(f"<{one['role']}>{one['content']}" for one in prompt.messages)
        ids = list(text.encode("utf-8")) if with_ids else []
        if isinstance(prompt, Text) and not alone:
            ids = [1, *ids]
        return Rendered(1, text, len(text.encode()), ids, [bytes([id]) for id in ids])

    async def beginnings(
        self, prompt: Prompt | None = None, reading: Reading | None = None
    ) -> list[str]:
        """Of a prompt, its first letters; what was read is said by the test."""
        if prompt is None:
            return self.held
        msgspec.msgpack.encode(FindBeginnings(1, prompt, reading or Reading()))
        text = (await self.render(prompt)).text
        return [text[:n] for n in range(8, len(text) + 1, 8)]

    async def embed(self, prompts: list[Prompt], truncate: bool = False) -> Vectors:
        msgspec.msgpack.encode(Embed(1, 0, prompts))
        one = bytes.fromhex("0000803f00000000000000000000803f")  # 1, 0, 0, 1 as float32
        return Vectors(1, [one] * len(prompts), 3 * len(prompts))

    async def packs(self) -> list[PackFacts]:
        return [PackFacts(name, n, 10 * n, "Toy") for name, n in self.stored.items()]

    async def remove_pack(self, name: str) -> list[PackFacts]:
        if name not in self.stored:
            raise RequestRefused(Refused(1, "not found", f"no pack is called {name!r}"))
        del self.stored[name]
        return await self.packs()

    async def remember(self, id: int, message: dict[str, Any]) -> None:
        self.remembered.append(message)
