"""Requests that read and do not generate: vectors of texts, and packs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...ops.arrays import F32
from ..context.reading.prompt import n_common
from ..embedding.embedder import normalised
from ..embedding.pooling import pooling_of_file
from ..embedding.readers import TextPass
from ..stats import Clock
from .protocol import Done, Finish, Progress, Vectors
from .refusal import Refusal
from .requests.contexts import refuse_bad_pack
from .tasks import Send, Task

if TYPE_CHECKING:
    from ..context import Context
    from ..context.reading.reading import Reading
    from ..model import Model
    from .flags import Flags
    from .protocol import Embed
    from .requests.preparing import PackRequest


class EmbedTask(Task):
    """A vector of norm 1 for each text: of its last token where the file says so, else the mean of
    all."""

    def __init__(
        self, asked: Embed, texts: Sequence[list[int]], model: Model, flags: Flags, send: Send
    ) -> None:
        super().__init__(asked, flags, send)
        self._model, self._texts = model, deque(texts)
        self._n_tokens = sum(map(len, texts))
        self._vectors: list[F32] = []
        self._pass: TextPass | None = None
        pooling = pooling_of_file(model.file.architecture, model.file.metadata)
        self._pooling = "last" if pooling == "last" else "mean"
        self.notice = (
            f"vectors are those of a text's last token, as {model.name} says"
            if pooling == "last"
            else f"vectors are the mean of a text's tokens: {model.name} names no other way"
        )
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
        if self._pass is None:
            self._pass = TextPass(self._model, ids, self._pooling)
            self._pass.context.stop_at(self._flags.address(self.slot))
        n_read = self._pass.step(n_tokens)
        if self._pass.is_read:
            self._vectors.append(normalised(self._pass.vector[np.newaxis]))
            self._texts.popleft()
            self._release()
        self._done += n_read
        self._send(Progress(self.id, self._done, self._n_tokens, 0))
        return n_read

    def _release(self) -> None:
        if self._pass is not None:
            self._pass.context.close()
            self._pass = None

    def close(self, finish: Finish | None) -> None:
        self._release()
        if finish == "stop":
            vectors = [one.astype("<f4").tobytes() for one in self._vectors]
            self._send(Vectors(self.id, vectors, self._n_tokens))
        elif finish is not None:
            self._send(Done(self.id, finish, self._n_tokens))


class PackTask(Task):
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
        pack = self._asked
        with refuse_bad_pack(pack.path):
            self._context = context = self._model.open(pack.request)
        context.stop_at(self._flags.address(self.slot))
        self._n_before = len(context.tokens)
        if n_common(pack.ids, context.tokens) < self._n_before:
            raise Refusal(
                "invalid",
                f"pack {pack.path.name} holds {self._n_before:,} tokens of another text: choose "
                "another name, or remove it",
            )
        self._reading = context.reading(pack.ids[self._n_before :])
        self._send_progress()

    @property
    def reads(self) -> bool:
        return self._reading is not None and not self._is_read

    @property
    def finish(self) -> Finish | None:
        return "stop" if self._is_read else None

    def read(self, n_tokens: int) -> int:
        assert self._reading is not None
        clock, before = Clock(), self._reading.done
        with refuse_bad_pack(self._asked.path):
            self._is_read = self._reading.step(n_tokens)
        self._seconds += sum(clock.read())
        self._send_progress()
        return self._reading.done - before

    def _send_progress(self) -> None:
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
