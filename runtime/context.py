"""A context: the tokens a model has read, their KV cache, and what comes next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..ops.errors import KvarnError
from .attend import Attend, Full, LayerView
from .engine import on_engine
from .keep import Keep, KeepAll
from .stats import Stats
from .store import Ram

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .generate import Generation
    from .model import Model
    from .sampling import Sampler
    from .store import KVStore

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) after each chunk of a prefill."""

CHUNK = 512
"""Tokens of one prefill step; chunks start at absolute multiples, so that results do not depend
on how a prompt was cut into calls."""


class ContextError(KvarnError):
    """The context cannot take what it was given."""


@dataclass(frozen=True, slots=True)
class _StoredAttention:
    """The attention object that the transformer calls: append to the store, then attend."""

    layers: list[LayerView]
    attend: Attend
    start: int

    def __call__(
        self,
        layer: int,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        view = self.layers[layer]
        view.store.append(layer, k, v, self.start)
        self.attend.appended(view, self.start, len(k))
        self.attend(view, q, self.start, out)


class Context:
    """Tokens with their KV cache; reads more tokens, generates, and can be cut back.

    Made by `Model.context`. One context is used by one caller at a time; contexts of one model
    share its weights, and all of them compute on the one engine thread.
    """

    def __init__(
        self, model: Model, n_ctx: int, attend: Attend | None, keep: Keep | None, store: Ram | None
    ) -> None:
        from ..ops.attention import AttentionScratch

        config = model.config
        if n_ctx < 1:
            raise ContextError(f"a context needs room for at least one token, not {n_ctx}")
        self.model = model
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.stats = Stats()
        self._keep = keep if keep is not None else KeepAll()
        self._store: KVStore = (store if store is not None else Ram()).open(config, n_ctx)
        self._attend = (attend if attend is not None else Full()).bound(config, self._store, n_ctx)
        self.stats.layers = self._attend.reads
        scratch = AttentionScratch(
            config.n_heads, config.n_kv_heads, self._store.layout, max_rows=CHUNK, n_ctx=n_ctx
        )
        self._layers = [
            LayerView(i, layer, self._store, scratch) for i, layer in enumerate(config.layers)
        ]
        self._logits: NDArray[np.float32] | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of the KV cache held now."""
        return self._store.n_bytes

    @property
    def notices(self) -> Sequence[str]:
        """Lines about the context's method that its user should see."""
        return self._attend.notices

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Ids of a prompt: text is parsed with special tokens, and BOS stands first in the context
        where the model wants it; ids are taken as they are."""
        if not isinstance(prompt, str):
            return [int(i) for i in prompt]
        tokenizer = self.model.tokenizer
        return tokenizer.encode(prompt, bos=tokenizer.add_bos and not self.tokens, special=True)

    def prefill(
        self, prompt: str | Sequence[int], progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Read `prompt` after the tokens already there; return the last logits, float32 (V,).

        Raises `ContextError` for an empty prompt in an empty context, ids outside the vocabulary
        and prompts longer than the room left; the context is then unchanged.
        """
        ids = self.encode(prompt)
        self._check(ids)
        began = time.perf_counter()
        done = 0
        while done < len(ids):
            size = min(CHUNK - len(self.tokens) % CHUNK, len(ids) - done)
            on_engine(self._step, ids[done : done + size], done + size == len(ids))
            done += size
            if progress is not None:
                progress(done, len(ids))
        self.stats.add_prefill(len(ids), time.perf_counter() - began)
        return self.logits

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of the last token read, float32 (V,)."""
        if self._logits is None:
            if not self.tokens:
                raise ContextError("an empty context has no logits: prefill at least one token")
            last = self.tokens.pop()  # the context was cut back: read its last token again
            on_engine(self._step, [last], True)
        assert self._logits is not None
        return self._logits

    def decode(self, token: int) -> NDArray[np.float32]:
        """Read one generated token and return its logits, float32 (V,)."""
        self._check([token])
        began = time.perf_counter()
        on_engine(self._step, [token], True)
        self.stats.add_decode(1, time.perf_counter() - began)
        return self.logits

    def truncate(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens."""
        if not 0 <= n_tokens <= len(self.tokens):
            raise ContextError(
                f"cannot cut a context of {len(self.tokens)} tokens to {n_tokens} tokens"
            )
        if n_tokens < len(self.tokens):
            del self.tokens[n_tokens:]
            self._logits = None

    def generate(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: Iterable[str] = (),
    ) -> Iterator[str]:
        """Read `prompt` and yield the answer in pieces of text, never half a character.

        Ends at an end-of-generation token, a stop string (not yielded), `max_tokens` or a full
        context. See `generate.Generation` for why it ended.
        """
        return self.generation(prompt, max_tokens, sampler, stop).pieces()

    def generation(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: Iterable[str] = (),
    ) -> Generation:
        """Like `generate`, as an object that also tells why and where it ended."""
        from .generate import Generation

        return Generation(self, prompt, max_tokens, sampler, tuple(stop))

    def generate_ids(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_at_eos: bool = True,
    ) -> Iterator[int]:
        """Read `prompt` and yield the ids that follow, up to an end-of-generation token."""
        return self.generation(prompt, max_tokens, sampler).ids(stop_at_eos=stop_at_eos)

    def _check(self, ids: Sequence[int]) -> None:
        if not ids and not self.tokens:
            raise ContextError("nothing to read: the prompt is empty")
        if ids and not 0 <= min(ids) <= max(ids) < self.model.config.n_vocab:
            wrong = next(i for i in ids if not 0 <= i < self.model.config.n_vocab)
            raise ContextError(
                f"token id {wrong} is outside the vocabulary of {self.model.config.n_vocab} tokens"
            )
        if not self._keep.room_for(len(self.tokens) + len(ids), self.n_ctx):
            raise ContextError(
                f"{len(ids)} more tokens do not fit: the context holds {len(self.tokens)} of "
                f"{self.n_ctx} tokens; use a larger --ctx or a shorter prompt"
            )

    def _forward(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Hidden states (T, D) of a chunk, valid until the next one; a token counts as read only
        once every layer has it."""
        start = len(self.tokens)
        self._logits = None
        self._store.reserve(start + len(ids))
        attention = _StoredAttention(self._layers, self._attend, start)
        hidden = self.model.transformer.forward(
            np.asarray(ids, np.int32), start, attention, self.n_ctx
        )
        self.tokens.extend(ids)
        return hidden

    def _step(self, ids: Sequence[int], want_logits: bool) -> None:
        hidden = self._forward(ids)
        if want_logits:
            self._logits = self._project(hidden[-1:])[0]

    def _project(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = np.empty((len(hidden), self.model.config.n_vocab), np.float32)
        self.model.transformer.logits(hidden, logits)
        return logits

    def read_all_logits(self, ids: Sequence[int], first: int = 0) -> Iterator[NDArray[np.float32]]:
        """Read `ids` and yield the logits of each from number `first` on, float32 (rows, V).

        At most 32 rows at a time, so that a large vocabulary does not cost gigabytes.
        """
        self._check(ids)
        done = 0
        while done < len(ids):
            size = min(CHUNK - len(self.tokens) % CHUNK, len(ids) - done)
            chunk = ids[done : done + size]
            hidden = on_engine(self._forward, chunk).copy()
            for row in range(max(0, first - done), size, 32):
                yield on_engine(self._project, hidden[row : row + 32])
            done += size
