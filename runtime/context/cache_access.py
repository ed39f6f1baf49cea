"""A context's public view of its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ...ops.arrays import U32
from ..attend import AttendError
from ..attend.selections import Source, recording
from ..cache import KVCache
from ..engine import on_engine
from ..methods import called
from ..store import KVStore
from ..store.host import HostStore

if TYPE_CHECKING:
    from ..methods import Progress
    from ..model import Model
    from ..store import StoreError
    from ..store.base import Allow
    from ..token_ids import TokenIds
    from .planning.plan import ContextPlan
    from .reading.token_reader import TokenReader
    from .saving import Saving


class CacheAccess:
    """A context's KV cache, seen from outside: store, size, kept tokens, index, selections."""

    model: Model
    tokens: TokenIds
    plan: ContextPlan
    """What the context is."""
    _cache: KVCache
    _reader: TokenReader
    _saving: Saving

    @property
    def where(self) -> str:
        """A line that tells where K and V are, if the model is on a GPU; else ""."""
        return self.plan.placement.line

    @property
    def store(self) -> KVStore:
        """The store of K and V."""
        return self._cache.store

    @property
    def reader(self) -> TokenReader:
        """What reads tokens into the KV cache."""
        return self._reader

    @property
    def n_bytes(self) -> int:
        """Bytes of the KV cache held now."""
        return self._cache.store.n_bytes

    def kept_positions(self, layer: int) -> U32:
        """Positions of the tokens that each KV head of a layer keeps, uint32 (J, n), unordered."""
        return self._cache.kept_positions(layer, len(self.tokens))

    @property
    def notices(self) -> Sequence[str]:
        """Lines about what was decided, the context's methods, its factors, and where K and V are,
        for its user."""
        first = (line for line in (self.where, self._rotation()) if line)
        return (*self.plan.notices, *first, *self._cache.notices)

    def _rotation(self) -> str:
        """A line where LongRoPE's long factors are taken, else ""."""
        original = self.model.config.n_ctx_orig
        two_sets = self.model.transformer.weights.rope_long is not None
        if not two_sets or self._cache.most_tokens <= original:
            return ""
        return (
            f"LongRoPE: the context may have more than {original:,} tokens, so all positions take "
            "the long factors; contexts up to that size take the short ones"
        )

    def limit_saves(self, allow: Allow, on_failure: Callable[[StoreError], None]) -> None:
        """Call `allow` before each save with the most bytes by which it makes files grow. If that
        raises `StoreError`, or a save fails, `on_failure` is called with the error, and the context
        goes on in memory: nothing is saved any more."""
        self._saving.limit(allow, on_failure)

    def stop_saving(self) -> None:
        """Save nothing from now on, nor on `close`: what is saved stays as it is."""
        self._saving.stop_saving()

    @property
    def has_failed_to_save(self) -> bool:
        """Whether a save has failed: what is saved is then an earlier state."""
        return self._saving.failed

    @property
    def is_due_while_reading(self) -> bool:
        """Whether a store that saves is to be saved now, in the middle of a prompt."""
        return self._saving.is_due_while_reading(len(self.tokens))

    def rehearse(self) -> None:
        """Run the kernels that contexts of these methods need only where they are far longer, on
        disk, or held by shards. More than 1,024 tokens have been read; nothing changes."""
        from ..shards.rehearsal import rehearse

        cache, n = self._cache, len(self.tokens)
        on_engine(cache.attend.rehearse, cache.layers)
        if isinstance(cache.store, HostStore):
            info, method = self.model.info, self.plan.attend
            on_engine(rehearse, method, info, cache.store, cache.layers, n)

    def index(self, progress: Progress | None = None) -> None:
        """Index the tokens that the attend method has not indexed, as in a pack that was read with
        another method; otherwise, this happens with the next token.

        progress is called with (layers done, layers in all).
        """
        on_engine(self._reader.index, progress)

    def recording(self, path: str | Path) -> AbstractContextManager[None]:
        """Write the tokens that each layer attends to, in the block, to the file `path`, and the
        ids of all tokens, see `attend.selections`. The file gets its name when it is complete.

        Raises `AttendError` if the method reads all tokens, `FileRefused` or OSError if the file
        cannot be written.
        """
        if not self.plan.attend.selects:
            raise AttendError("there are no selections to record: the method reads all tokens")
        config, info = self.model.config, self.model.info
        method = called(self.plan.attend)
        n_layers = len(config.attention_layers)
        source = Source(n_layers, config.n_kv_heads, info.name, info.fingerprint, method)
        return recording(self._cache.attend, path, source, self.tokens)
