"""A context: the tokens a model has read, their KV cache, and what comes next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..engine import on_engine
from .reader import CHUNK, ContextError, Reader, checked_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..draft import Draft
    from ..generate import Generation
    from ..sampling import Sampler
    from ..store import KVStore

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) after each chunk of a prefill."""


FILLED_SEGMENTS = 16
"""Segments after which `fill` saves: those not saved yet are in memory."""


class Context(Reader):
    """Tokens with their KV cache; reads more tokens, generates, and can be cut back.

    Made by `Model.context`. One context is used by one caller at a time; contexts of one model
    share its weights, and all of them compute on the one engine thread.

    On a store that saves, it begins with what was saved, and saves itself after each chunk of a
    prefill, every 64 generated tokens or second, and on `close`; as a context manager it closes
    itself. Cutting it back takes effect on disk with the next save.
    """

    @property
    def store(self) -> KVStore:
        """Where K and V are."""
        return self._cache.store

    @property
    def n_bytes(self) -> int:
        """Bytes of the KV cache held now."""
        return self._cache.store.n_bytes

    def kept(self, layer: int) -> NDArray[np.uint32]:
        """Positions of the tokens that each KV head of a layer keeps, uint32 (J, n), unordered."""
        return self._cache.kept(layer, len(self.tokens))

    @property
    def notices(self) -> Sequence[str]:
        """Lines about the context's method that its user should see."""
        return self._cache.attend.notices

    def index(self, progress: Progress | None = None) -> None:
        """Build what the attend method's index lacks of the tokens there are, as after opening a
        pack that another method has read; otherwise the next token does it.

        progress is called with (layers done, layers in all).
        """
        on_engine(self._cache.index, len(self.tokens), progress)

    @contextmanager
    def recording(self, path: str | Path) -> Iterator[None]:
        """While it is open, the tokens that each layer attends to are written to the file `path`,
        see `attend.selections`. The file has its name when all of them are in it.

        Raises `AttendError` where the method reads all tokens, `FileRefused` or OSError where it
        cannot be written.
        """
        from ..attend.selections import SelectionWriter

        attend, config = self._cache.attend, self.model.config
        attend.record(None)  # before there is a file: may there be selections?
        with SelectionWriter(path, config.n_layers, config.n_kv_heads) as writer:
            attend.record(writer)
            try:
                yield
            finally:
                attend.record(None)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Ids of a prompt: text is parsed with special tokens, and BOS stands first in the context
        where the model wants it; ids are taken as they are. Raises `ContextError` for anything
        else."""
        if not isinstance(prompt, str):
            return checked_ids(prompt)
        tokenizer = self.model.tokenizer
        return tokenizer.encode(prompt, bos=tokenizer.add_bos and not self.tokens, special=True)

    def prefill(
        self, prompt: str | Sequence[int], progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Read `prompt` after the tokens already there; return the last logits, float32 (V,).

        Raises `ContextError` for an empty prompt in an empty context, ids outside the vocabulary,
        bytes, and prompts longer than the room left; the context is then unchanged.
        """
        ids = self.encode(prompt)
        self._check(ids)
        began = time.perf_counter()
        done = 0
        while done < len(ids):
            size = min(CHUNK - len(self.tokens) % CHUNK, len(ids) - done)
            on_engine(self._step, ids[done : done + size], done + size == len(ids))
            done += size
            self.commit()
            if progress is not None:
                progress(done, len(ids))
        self.stats.add_prefill(len(ids), time.perf_counter() - began)
        return self.logits

    def fill(self, n_tokens: int, progress: Progress | None = None) -> None:
        """Go on to `n_tokens` tokens without reading them, to measure long contexts: what was read
        is repeated with noise, see `filling`. What saves is saved on the way.

        progress is called with (tokens done, tokens in all) after each 1,024. Raises `ContextError`
        where none were read or there is no room, `FillError` where memory has none or tokens have
        been evicted.
        """
        from ...ops.attention.layout import SEGMENT
        from .filling import Filling

        n_read = len(self.tokens)
        if not 0 < n_read <= n_tokens <= self.n_ctx:
            raise ContextError(
                f"cannot fill a context of {n_read} tokens up to {n_tokens}: it must hold at least "
                f"one token and has room for {self.n_ctx}"
            )
        filling = on_engine(Filling, self._cache, n_read)
        filling.check_room(n_tokens)
        while (done := len(self.tokens)) < n_tokens:
            stop = min(n_tokens, (done // SEGMENT + 1) * SEGMENT)
            self._logits = self._hidden = None
            self._ahead.clear()
            on_engine(filling.append, done, stop)
            self.tokens.extend(self.tokens[i % n_read] for i in range(done, stop))
            if self._cache.store.saves and stop // SEGMENT % FILLED_SEGMENTS == 0:
                on_engine(self._saving.save, self.tokens, None)
            if progress is not None:
                progress(stop, n_tokens)

    def decode(self, token: int, draft: Sequence[int] = ()) -> NDArray[np.float32]:
        """Read one generated token and return its logits, float32 (V,).

        `draft` holds guesses, up to `draft_room` of them, of the tokens after it. They are read in
        the same pass but are no part of the context: a `decode` of the first of them finds its
        logits ready (see `reads_ahead`), one of another token, or anything else that is read,
        forgets them all. A pass of more than 4 tokens has the bits of a prefill; the kernels for
        fewer and for a single token add in another order, so that logits differ by rounding.

        Raises `ContextError` for ids outside the vocabulary, a full context and long drafts.
        """
        began = time.perf_counter()
        if self.reads_ahead(token):
            on_engine(self._accept)
            self.stats.add_accepted()
        else:
            (token,), draft = checked_ids([token]), checked_ids(draft)
            self._check([token, *draft])
            if len(draft) > self.draft_room:
                raise ContextError(
                    f"a draft of {len(draft)} tokens is too long: there is room for "
                    f"{self.draft_room} before the end of the chunk or of the context"
                )
            on_engine(self._read_ahead, token, draft)
            self.stats.add_draft(len(draft))
        self.stats.add_decode(1, time.perf_counter() - began)
        if self._saving.due(len(self.tokens)):
            self.commit()
        return self.logits

    @property
    def draft_room(self) -> int:
        """The longest draft that `decode` takes now: passes stay within chunks and the context."""
        n = len(self.tokens)  # a guess must not evict a token
        return max(0, min(CHUNK - n % CHUNK, self._cache.places_left(n, self.n_ctx)) - 1)

    def reads_ahead(self, token: int) -> bool:
        """Whether `token` would be the next one of a draft, so that `decode` computes nothing."""
        return bool(self._ahead) and self._ahead[0][0] == token

    def generate(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Iterable[str] = (),
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """Read `prompt` and yield the answer in pieces of text, never half a character.

        Ends at an end-of-generation token, a stop string (not yielded; `stop` is one or some of
        them), `max_tokens` or a full context. See `generate.Generation` for why it ended and what a
        draft changes.
        """
        return self.generation(prompt, max_tokens, sampler, stop, draft).pieces()

    def generation(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Iterable[str] = (),
        draft: Draft | None = None,
    ) -> Generation:
        """Like `generate`, as an object that also tells why and where it ended."""
        from ..generate import Generation

        return Generation(self, prompt, max_tokens, sampler, stop, draft)

    def generate_ids(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_at_eos: bool = True,
        draft: Draft | None = None,
    ) -> Iterator[int]:
        """Read `prompt` and yield the ids that follow, up to an end-of-generation token."""
        generation = self.generation(prompt, max_tokens, sampler, draft=draft)
        return generation.ids(stop_at_eos=stop_at_eos)

    def read_all_logits(self, ids: Sequence[int], first: int = 0) -> Iterator[NDArray[np.float32]]:
        """Read `ids` and yield the logits of each from number `first` on, float32 (rows, V).

        At most 32 rows at a time, so that a large vocabulary does not cost gigabytes.
        """
        ids = checked_ids(ids)
        self._check(ids)
        done = 0
        while done < len(ids):
            size = min(CHUNK - len(self.tokens) % CHUNK, len(ids) - done)
            wanted = max(0, min(size, done + size - first))
            hidden = on_engine(self._forward, ids[done : done + size], max(1, wanted)).copy()
            for row in range(0, wanted, 32):
                yield on_engine(self._project, hidden[row : row + 32])
            done += size
