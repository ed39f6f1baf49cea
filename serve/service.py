"""The server's state that all paths share."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from starlette.types import Scope

from ..runtime.serving.client import EngineClient
from ..runtime.serving.protocol import Ready
from ..system.text import shown
from .settings import Settings
from .wire.errors import ApiError, api_error
from .wire.log import Log

DEFAULT_NAMES = ("", "default")
"""Names of a model that mean the one that is served."""


@dataclass
class Service:
    """n_requests: those that are being answered. requests, seconds: of each path pattern that has
    been asked, by status too, for /metrics."""

    settings: Settings
    engine: EngineClient
    log: Log
    n_requests: int = 0
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    started: float = field(default_factory=time.time)
    is_stopping: bool = False
    converting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Documents that are turned into texts at the same time, at most."""
    prompt_ends: dict[str, str] = field(default_factory=dict)
    """Of `answers.parsing`: how the rendered prompt ends, by the template's variables."""

    def ready(self) -> Ready:
        """The model. Raises `ApiError` 503 while there is none."""
        if self.is_stopping:
            raise ApiError(503, "the server is stopping: try again later")
        if self.engine.state == "ready" and self.engine.facts is not None:
            return self.engine.facts
        if self.engine.state == "loading":
            raise ApiError(503, f"the model is loading ({self.engine.step}): try again soon")
        raise ApiError(503, f"{self.engine.reason or 'the engine has ended'}: try again later")

    def model_called(self, name: str | None) -> Ready:
        """The model, if that is its name. Raises `ApiError` 404 for another's."""
        facts = self.ready()
        if (name or "").removesuffix(":latest") not in (*DEFAULT_NAMES, *names_of(facts)):
            raise ApiError(
                404,
                f"model is {shown(name or '')}, expected {model_id(facts)}, which is served",
                "model",
                "model_not_found",
            )
        return facts

    def error_of(self, error: Exception) -> ApiError:
        """The error that a request gets.

        For kvarn's own faults the log gets the place, but no text, which may hold a prompt."""
        answer = api_error(error)
        if answer.status == 500:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(f"{one.filename}:{one.lineno}" for one in reversed(frames))
            self.log.notice(f"unexpected {type(error).__name__} at {places}")
        return answer

    def skip_tool(self, path: str, kind: str) -> None:
        """Say that a tool which runs at its vendor's is left out."""
        self.log.notice(f"{path}: a tool of type {shown(kind, 40)} is not here, and left out")

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that has ended. Unknown paths count as one."""
        route = scope.get("kvarn.route", "other")
        self.requests[scope["method"] if route != "other" else "", route, status] += 1
        self.seconds[route] += seconds


def sizes_of(facts: Ready) -> dict[str, int]:
    """Numbers of the model, by the names that llama.cpp's server has for them."""
    return {
        "n_ctx_train": facts.n_ctx_train,
        "n_vocab": facts.n_vocab,
        "n_embd": facts.n_embd,
        "n_params": facts.n_params,
        "size": facts.n_bytes,
    }


def model_id(facts: Ready) -> str:
    """The name of the model in the APIs: its file's, without the suffix."""
    return facts.path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")


def names_of(facts: Ready) -> tuple[str, ...]:
    """All names that the model goes by."""
    return model_id(facts), f"{model_id(facts)}.gguf", facts.path, facts.name
