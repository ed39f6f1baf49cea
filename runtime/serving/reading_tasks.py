"""Requests that read and do not generate: vectors of texts, and packs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..context.planning.request import ContextRequest
from ..context.reading.prompt import n_common
from .protocol import Done, Finish, Progress, Vectors
from .refusal import Refusal
from .requests.contexts import using
from .tasks import Send, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..context import Context
    from ..context.reading.reading import Reading
    from ..model import Model
    from .flags import Flags
    from .protocol import Embed
    from .requests.preparing import PackRequest

_LAST = 3
"""The number of pooling by the last token in a GGUF file; any other is the mean of all."""


class Embedding(Task):
    """A vector for each text: the mean of the hidden states of its tokens after the last norm, or
    that of the last token, where the file says so (`ARCHITECTURE.pooling_type`). Its L2 norm is 1.
    """

    def __init__(
        self, asked: Embed, texts: Sequence[list[int]], model: Model, flags: Flags, send: Send
    ) -> None:
        super().__init__(asked, flags, send)
        self._model, self._texts = model, deque(texts)
        self._n_tokens = sum(map(len, texts))
        self._vectors: list[bytes] = []
        self._context: Context | None = None
        self._sum: NDArray[np.float64] = np.zeros(model.config.n_embd)
        key = f"{model.file.architecture}.pooling_type"
        self._is_last = model.file.metadata.get(key) == _LAST
        self._done = 0

    def open(self) -> None:
        """See `Task`."""

    @property
    def reads(self) -> bool:
        return bool(self._texts)

    @property
    def finish(self) -> Finish | None:
        return None if self._texts else "stop"

    def read(self, n_tokens: int) -> int:
        ids = self._texts[0]
        if self._context is None:
            self._context = self._model.open(ContextRequest(n_ctx=len(ids)))
            self._context.stop_at(self._flags.address(self.slot))
            self._context.reader.begin_prompt(len(ids), anew=False)
            self._sum[:] = 0
        reader = self._context.reader
        chunk = next(iter(reader.chunks(ids[len(reader.tokens) :][:n_tokens])))
        hidden = reader.forward(chunk, 1 if self._is_last else None)
        self._sum = self._sum * (not self._is_last) + hidden.sum(0, dtype=np.float64)
        if len(reader.tokens) == len(ids):
            norm = np.linalg.norm(self._sum) or 1.0
            self._vectors.append((self._sum / norm).astype("<f4").tobytes())
            self._texts.popleft()
            self._release()
        self._done += len(chunk)
        self._send(Progress(self.id, self._done, self._n_tokens, 0))
        return len(chunk)

    def _release(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def close(self, finish: Finish | None) -> None:
        self._release()
        if finish == "stop":
            self._send(Vectors(self.id, self._vectors, self._n_tokens))
        elif finish is not None:
            self._send(Done(self.id, finish, self._n_tokens))


class PackReading(Task):
    """Reads a text into a pack, with the index of the method it is read for; goes on where an
    earlier reading of the same text has ended."""

    def __init__(self, asked: PackRequest, model: Model, flags: Flags, send: Send) -> None:
        super().__init__(asked.asked, flags, send)
        self._asked, self._model = asked, model
        self._context: Context | None = None
        self._reading: Reading | None = None
        self._n_before = 0
        self._seconds = 0.0
        self._is_read = False

    def open(self) -> None:
        asked = self._asked
        with using(asked.path):
            self._context = context = self._model.open(asked.request)
        context.stop_at(self._flags.address(self.slot))
        self._n_before = len(context.tokens)
        if n_common(asked.ids, context.tokens) < self._n_before:
            raise Refusal(
                "invalid",
                f"pack {asked.path.name} holds {self._n_before:,} tokens of another text: choose "
                "another name, or remove it",
            )
        self._reading = context.reading(asked.ids[self._n_before :])
        self._tell()

    @property
    def reads(self) -> bool:
        return self._reading is not None and not self._is_read

    @property
    def finish(self) -> Finish | None:
        return "stop" if self._is_read else None

    def read(self, n_tokens: int) -> int:
        assert self._reading is not None
        began, before = time.perf_counter(), self._reading.done
        self._is_read = self._reading.step(n_tokens)
        self._seconds += time.perf_counter() - began
        self._tell()
        return self._reading.done - before

    def _tell(self) -> None:
        done = self._n_before + (0 if self._reading is None else self._reading.done)
        self._send(Progress(self.id, done, len(self._asked.ids), self._n_before))

    def close(self, finish: Finish | None) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.stop_at(0)
            context.close()
        if finish is not None:
            n = len(self._asked.ids)
            self._send(Done(self.id, finish, n, self._n_before, read_seconds=self._seconds))
