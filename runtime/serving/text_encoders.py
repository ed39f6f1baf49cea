"""The engine process of a text encoder: answers `Embed` alone.

Vectors take milliseconds, so requests are computed one after the other, whole. There are no
contexts, packs or templates.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...models.config.architectures import TEXT_ENCODERS
from ...system.text import one_line
from ..embedding.loading import load_embedder
from ..embedding.pooling import EmbeddingError
from ..embedding.texts import Ids, TextIds
from ..gguf import GGUFFile, open_gguf
from .flags import SLOTS, Flags
from .frames import Connection
from .prompt import Prompt, Text
from .protocol import (
    Done,
    Embed,
    ListPacks,
    Loading,
    Packs,
    Ready,
    Refused,
    Remember,
    Start,
    Stop,
    ToEngine,
    Vectors,
)
from .refusal import Refusal, prompt_too_long, refusal_of, reject

if TYPE_CHECKING:
    import msgspec

_WITHOUT_EFFECT = (("method", "auto"), ("device", "cpu"))
"""Words that ask for nothing: what is meant where nothing is said."""


def text_encoder_engine(connection: Connection[ToEngine], start: Start) -> TextEncoderEngine | None:
    """The engine of a text encoder; None for a model that generates. Raises what loading raises,
    and `EmbeddingError` for options that have no effect on vectors."""
    file = open_gguf(Path(start.model))
    if file.architecture not in TEXT_ENCODERS:
        return None
    if start.words.get("device", "cpu") != "cpu":
        raise EmbeddingError("text encoders run on the CPU alone: omit --device")
    words = ["ctx"] if start.n_ctx else []
    words += [word for word, value in start.words.items() if (word, value) not in _WITHOUT_EFFECT]
    if words:
        flags = ", ".join(f"--{word.replace('_', '-')}" for word in sorted(words))
        raise EmbeddingError(f"{_kind(file.path.name, file)}: omit {flags}")
    return TextEncoderEngine(connection, start, file)


def _kind(name: str, file: GGUFFile) -> str:
    """What the model is, in words of a refusal."""
    return f"{one_line(name)} is a text encoder ({file.architecture}), which generates no text"


class TextEncoderEngine:
    """A text encoder, at one end of a connection."""

    def __init__(self, connection: Connection[ToEngine], start: Start, file: GGUFFile) -> None:
        self._connection, self._start, self._file = connection, start, file
        self._notices: list[str] = []
        self._flags = Flags(start.cancel_path)
        self._send(Loading(f"loading {file.path.name}"))
        self._embedder = load_embedder(
            file.path, threads=start.threads or None, notice=self._notices.append
        )
        self._pool = ThreadPoolExecutor(1, "kvarn-embed")
        self._room = threading.BoundedSemaphore(start.parallel + start.queue)

    def run(self) -> None:
        """Serve until the server stops the engine, or is gone."""
        signal.signal(signal.SIGTERM, lambda *_: self._connection.close())
        self._send(self._ready())
        try:
            self._receive()
        finally:
            Path(self._start.cancel_path).unlink(missing_ok=True)
            self._pool.shutdown(cancel_futures=True)
            self._connection.close()

    def _ready(self) -> Ready:
        embedder, file = self._embedder, self._file
        return Ready(
            name=embedder.name,
            path=str(file.path),
            n_ctx=embedder.n_ctx,
            n_ctx_train=embedder.n_ctx,
            n_vocab=embedder.tokenizer.n_vocab,
            n_embd=embedder.n_embd,
            n_params=file.n_parameters,
            n_bytes=file.n_bytes,
            architecture=file.architecture,
            file_type=file.file_type,
            notices=list(self._notices),
        )

    def _receive(self) -> None:
        for message in self._connection.messages(partial(reject, self._send)):
            if isinstance(message, Stop):
                return
            self._take(message)

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, ListPacks):
            self._send(Packs(message.id, []))
        elif isinstance(message, Embed):
            self._begin(message)
        elif not isinstance(message, Start | Stop | Remember):
            line = f"{_kind(self._embedder.name, self._file)}: use /v1/embeddings or /api/embed"
            self._send(Refused(message.id, "invalid", line))

    def _begin(self, asked: Embed) -> None:
        if not 0 <= asked.slot < SLOTS:
            self._send(Refused(asked.id, "engine", f"slot {asked.slot}: expected below {SLOTS}"))
        elif not self._room.acquire(blocking=False):
            line = "too many requests are waiting or running: try again later"
            self._send(Refused(asked.id, "busy", line))
        else:
            self._pool.submit(self._answer, asked)

    def _answer(self, asked: Embed) -> None:
        answer: Done | Refused | Vectors
        try:
            if self._flags.is_ended(asked.slot):
                answer = Done(asked.id, "cancelled")
            else:
                answer = self._vectors(asked)
        except Exception as error:
            answer = refusal_of(asked.id, error, "invalid")
        self._room.release()
        self._send(answer)

    def _vectors(self, asked: Embed) -> Vectors:
        texts = [self._ids(prompt, asked.truncate) for prompt in asked.prompts]
        vectors = self._embedder.embed_ids(texts)
        n_tokens = sum(len(text.tokens) for text in texts)
        return Vectors(asked.id, [one.astype("<f4").tobytes() for one in vectors], n_tokens)

    def _ids(self, prompt: Prompt, truncate: bool) -> Ids:
        """The tokens of a prompt. Raises `Refusal` for one that is too long, or no text."""
        embedder = self._embedder
        if isinstance(prompt, Text):
            most = embedder.n_ctx if truncate else 1 << 31
            [ids] = TextIds(embedder.tokenizer, most, truncate).of_texts([prompt.text])
        elif isinstance(prompt, list):
            last = embedder.tokenizer.n_vocab - 1
            if not prompt or not 0 <= min(prompt) <= max(prompt) <= last:
                expected = f"expected some of 0 to {last}"
                raise Refusal("invalid", f"the input has ids of tokens, {expected}")
            ids = Ids(prompt, len(prompt))
        else:
            raise Refusal("invalid", "the input is a chat, expected texts or ids of tokens")
        if len(ids.tokens) > embedder.n_ctx:
            raise prompt_too_long(len(ids.tokens), embedder.n_ctx)
        return ids

    def _send(self, message: msgspec.Struct) -> None:
        with suppress(OSError):  # if the server is gone, `_receive` ends
            self._connection.send(message)
