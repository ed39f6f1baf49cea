"""Reading tokens into a KV cache: what a context does beneath its interface."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from numbers import Integral
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from ...jit import forks
from ...system.errors import KvarnError
from ..attend import Attend, Full
from ..engine import on_engine
from ..keep import Keep, KeepAll
from ..stats import Stats
from ..store import Disk, Ram
from .kv_cache import KVCache, closed_on_error
from .saving import Saving

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from ..model import Model

CHUNK = 512
"""Tokens of one prefill step; chunks start at absolute multiples, so that results do not depend
on how a prompt was cut into calls."""


class ContextError(KvarnError):
    """The context cannot take what it was given."""


def checked_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """The ids of a prompt; `ContextError` for bytes and for items that are no whole numbers.

    Bytes are whole numbers, too, and would be read as ids that mean something else.
    """
    if isinstance(prompt, str | bytes | bytearray | memoryview):
        raise ContextError(
            f"a prompt is text or token ids, found {type(prompt).__name__}: decode bytes "
            "(data.decode()), encode text (context.encode(text))"
        )
    try:
        return [index(i) for i in prompt]
    except TypeError as error:
        raise ContextError(f"a prompt is text or token ids, whole numbers: {error}") from error


class Reader:
    """The tokens that were read, their KV cache, the logits of the last one, and its saves."""

    model: Model
    n_ctx: int
    tokens: list[int]
    stats: Stats
    _cache: KVCache

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        attend: Attend | None,
        keep: Keep | None,
        store: Ram | Disk | None,
    ) -> None:
        forks.check()
        if not isinstance(n_ctx, Integral) or n_ctx < 1:
            raise ContextError(f"a context needs room for at least one token, not {n_ctx!r:.50}")
        self.model = model
        self.n_ctx = n_ctx
        self.tokens = []
        self.stats = Stats()
        self._cache = KVCache.open(
            model, n_ctx, CHUNK, attend or Full(), keep or KeepAll(), store or Ram()
        )
        with closed_on_error(self._cache.store):
            self._begin()

    def _begin(self) -> None:
        self.stats.layers = self._cache.attend.reads
        self._logits: NDArray[np.float32] | None = None
        # Drafted tokens that have been read after `tokens`, each with its logits and hidden state.
        self._ahead: deque[tuple[int, NDArray[np.float32], NDArray[np.float32]]] = deque()
        # Hidden state of the last token, which the logits are computed from; None: not known.
        self._hidden: NDArray[np.float32] | None = None
        self._hidden_memory = np.empty(self.model.config.n_embd, np.float32)
        saved = self._cache.store.saved
        if len(saved.tokens) > self.n_ctx:
            raise ContextError(
                f"the pack holds {len(saved.tokens)} tokens and the context has room for "
                f"{self.n_ctx}: use a larger --ctx"
            )
        self.tokens.extend(saved.tokens)
        self._hidden = saved.hidden
        self._saving = Saving(self._cache.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Save what is not saved yet, and let go of the store. All but `tokens` and `stats` raises
        `ContextError` after; another `close` does nothing.

        After a failed save there is no other one: what was saved before it stays. In a forked
        process nothing is saved: the pack is the parent's.
        """
        from .closed import ClosedContext  # a Context, whose module imports this one

        cache, tokens, stats = self._cache, self.tokens, self.stats
        try:
            if not forks.forked:
                try:
                    if not self._saving.failed:
                        self.commit()
                finally:
                    on_engine(cache.store.close)
        finally:
            object.__setattr__(self, "__class__", ClosedContext)
            self.__dict__.clear()  # memory, descriptors and mappings go
            self.tokens, self.stats = tokens, stats

    def commit(self) -> None:
        """Save all tokens, where the store saves; the next process that opens it goes on there.

        Raises `StoreError` where that fails; the store then keeps what it had saved before.
        """
        if self._cache.store.saves:
            on_engine(self._commit)

    def _commit(self) -> None:
        """On the engine thread, which may still have been in a step that two interrupts left."""
        if self.tokens and self._hidden is None:
            self._read_last_again()
        self._saving.save(self.tokens, self._hidden)

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last token read, float32 (V,)."""
        if self._logits is None:
            if not self.tokens:
                raise ContextError("an empty context has no logits: prefill at least one token")
            if self._hidden is None:
                self._read_last_again()
            else:
                self._logits = on_engine(self._project, self._hidden[None])[0]
        assert self._logits is not None
        return self._logits

    def _read_last_again(self) -> None:
        """After the context was cut back: what follows its last token is not known any more."""
        last = self.tokens[-1]
        self.truncate(len(self.tokens) - 1)
        on_engine(self._step, [last], True)

    def truncate(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens.

        Raises `ContextError` where there are fewer, and where `can_truncate` says no.
        """
        if not 0 <= n_tokens <= len(self.tokens):
            raise ContextError(
                f"cannot cut a context of {len(self.tokens)} tokens to {n_tokens} tokens"
            )
        if not self.can_truncate(n_tokens):
            raise ContextError(
                f"cannot cut a context of {len(self.tokens)} tokens to {n_tokens}: tokens that "
                f"stood there have been evicted; cut it to 0 and read it again"
            )
        if n_tokens < len(self.tokens):
            self._logits = self._hidden = None
            self._ahead.clear()
            del self.tokens[n_tokens:]

    def can_truncate(self, n_tokens: int) -> bool:
        """Whether the first `n_tokens` tokens can stay alone: not once others were evicted."""
        held = len(self.tokens)
        return n_tokens in (0, held) or not self._cache.evicted(held)

    def _check(self, ids: Sequence[int]) -> None:
        if not ids and not self.tokens:
            raise ContextError("nothing to read: the prompt is empty")
        if ids and not 0 <= min(ids) <= max(ids) < self.model.config.n_vocab:
            wrong = next(i for i in ids if not 0 <= i < self.model.config.n_vocab)
            raise ContextError(
                f"token id {wrong} is outside the vocabulary of {self.model.config.n_vocab} tokens"
            )
        if len(self.tokens) + len(ids) > self.n_ctx:
            raise ContextError(
                f"{len(ids)} more tokens do not fit: the context holds {len(self.tokens)} of "
                f"{self.n_ctx} tokens; use a larger --ctx or a shorter prompt"
            )

    def _forward(self, ids: Sequence[int], n_out: int | None = None) -> NDArray[np.float32]:
        """Hidden states (n_out, D) of a chunk's last tokens (default: all), valid until the next
        one; a token counts as read only once every layer has it."""
        start = len(self.tokens)
        self._logits = self._hidden = None
        self._ahead.clear()
        self._cache.begin(start, len(ids))
        hidden = self.model.transformer.forward(
            np.asarray(ids, np.int32), start, self._cache.attention, self.n_ctx, n_out
        )
        self.tokens.extend(ids)
        self._hidden_memory[:] = hidden[-1]
        self._hidden = self._hidden_memory
        return hidden

    def _step(self, ids: Sequence[int], want_logits: bool) -> None:
        hidden = self._forward(ids, n_out=1)
        if want_logits:
            self._logits = self._project(hidden)[0]

    def _read_ahead(self, token: int, draft: Sequence[int]) -> None:
        hidden = self._forward([token, *draft])
        if draft:
            del self.tokens[-len(draft) :]
            self._hidden, hidden = hidden[0].copy(), hidden.copy()
        logits = self._project(hidden)
        self._logits = logits[0]
        self._ahead.extend(zip(draft, logits[1:], hidden[1:]))

    def _accept(self) -> None:
        """The next token of the draft becomes part of the context."""
        token, self._logits, self._hidden = self._ahead.popleft()
        self.tokens.append(token)

    def _project(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = np.empty((len(hidden), self.model.config.n_vocab), np.float32)
        self.model.transformer.logits(hidden, logits)
        return logits
