"""What `kvarn serve` was asked for: made once by the command, read by all of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..runtime.serving.protocol import Start
from ..system.values import LOOPBACK

PORT = 8080


@dataclass(frozen=True)
class Limits:
    """What one request may take.

    queue: requests that wait beside those that generate; more are refused. first_byte_seconds:
    until the first text of an answer. body_seconds: until a body has arrived. stalled_seconds: that
    a client may not read. stop_seconds: that streams have to end once the server is told to.
    """

    body_bytes: int = 32 << 20
    queue: int = 64
    first_byte_seconds: float = 3600.0
    body_seconds: float = 60.0
    stalled_seconds: float = 60.0
    stop_seconds: float = 5.0


@dataclass(frozen=True)
class Settings:
    """The server's options.

    model: the GGUF file, which exists. host, port: where it listens; port 0: any free one. keys:
    those that requests have to name one of; (): none. n_ctx: room of a request in tokens, 0: the
    model's training length, or what fits in memory. parallel: answers that are generated at the
    same time. threads: of kernels, 0: one per physical core. words: how prompts are read and
    attended to unless a request says otherwise, and where the model runs, as `Start.words` of the
    protocol. cache_path, cache_bytes: the folder of what was read, and the most bytes of it; 0: in
    memory only.
    """

    model: Path
    cache_path: Path
    cache_bytes: int
    host: str = "127.0.0.1"
    port: int = PORT
    keys: tuple[str, ...] = ()
    n_ctx: int = 0
    parallel: int = 4
    threads: int = 0
    words: Mapping[str, Any] = field(default_factory=dict)
    log: Literal["text", "json"] = "text"
    limits: Limits = Limits()

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach it."""
        return self.host in LOOPBACK

    def start(self) -> Start:
        """The engine's first message; the client adds `cancel_path`."""
        return Start(
            model=str(self.model),
            n_ctx=self.n_ctx,
            parallel=self.parallel,
            threads=self.threads,
            cancel_path="",
            cache_path=str(self.cache_path),
            cache_bytes=self.cache_bytes,
            words=dict(self.words),
        )
