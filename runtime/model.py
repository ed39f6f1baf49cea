"""A model as users of kvarn see it, with its chat template; it makes contexts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from ..ops.arrays import F32
from ..system.values import count
from .attend import Attend, Full
from .attend.encoders import Learned
from .attend.encoders.sidecar import find_encoders
from .context import Context, ContextError
from .context.planning.placement import KVPlanner
from .context.planning.plan import plan_of
from .context.planning.request import ContextRequest
from .embedding import Embedder
from .embedding.pooling import EmbeddingError
from .embedding.readers import DecoderReader
from .engine import on_engine
from .keep import Keep, KeepAll
from .loading.devices import check_kv_on
from .loading.loaded_model import LoadedModel
from .prefill import Prefill
from .store import Ram, Store


class Model(LoadedModel):
    """Weights, configuration and tokenizer of one GGUF file; made by `kvarn.load`."""

    @property
    def encoders(self) -> Learned | None:
        """Learned hash encoders beside the file or in it: `attend.encoders.sidecar`."""
        return self.info.once(find_encoders)

    def most_tokens(
        self,
        attend: Attend | None = None,
        keep: Keep | None = None,
        store: Store | None = None,
        prefill: Prefill | None = None,
    ) -> int:
        """How many tokens, up to the model's training length, the memory of its GPU has room for.
        0 for a model without one."""
        request = ContextRequest(None, attend or Full(), keep or KeepAll(), store or Ram(), prefill)
        return on_engine(KVPlanner(self, request).most_tokens, self.config.n_ctx_train)

    def context(
        self,
        n_ctx: int | str | None = None,
        attend: Attend | None = None,
        keep: Keep | None = None,
        store: Store | None = None,
        prefill: Prefill | None = None,
        kv_on: str | None = None,
    ) -> Context:
        """A context, as the command line makes it of the same choices; what is not said, `plan_of`
        decides.

        n_ctx: room for so many tokens, as 8192 or "128K"; None: the model's training length, or
        what fits in memory; where that many follow a pack, 4,096 more. Where `keep` evicts, it
        reads on beyond them, and a budget in percent is a share of `n_ctx`. prefill: how prompts
        are read; None: exactly, or as the pack was begun that `store` writes; after one that it
        only reads, sparsely where `attend` chooses. kv_on: where K and V are if the model is on a
        GPU, "auto", "gpu" or "host"; None: as `load` was told.

        It is empty, or holds what the pack of `store=Disk(…)` holds. Raises `StoreError` if the KV
        cache of that many tokens does not fit in memory, or the pack cannot be used; `PrefillError`
        if prompts cannot be read as `prefill` says; `WrongValue` for a text that is no count.
        """
        size = count(n_ctx) if isinstance(n_ctx, str) else n_ctx
        if size is not None and (not isinstance(size, Integral) or size < 1):
            raise ContextError(f"a context needs room for at least one token, not {n_ctx!r:.50}")
        if kv_on is not None:
            check_kv_on(kv_on)
        return self.open(
            ContextRequest(
                size, attend or Full(), keep or KeepAll(), store or Ram(), prefill, kv_on
            )
        )

    def embed(
        self, texts: Sequence[str] | str, pooling: str = "mean", *, truncate: bool = False
    ) -> F32:
        """A vector of norm 1 for each text: float32 (texts, n_embd), of the hidden states of its
        tokens after the last norm. For models that were made for it, see `load_embedder`.

        pooling: "mean" of all tokens, or the "last" one. truncate: cut texts that have more tokens
        than the training length. Raises `EmbeddingError` as `Embedder.embed`.
        """
        if pooling not in ("mean", "last"):
            raise EmbeddingError(f"pooling is {pooling!r:.40}, expected mean or last")
        return Embedder(DecoderReader(self), pooling, self.name).embed(texts, truncate=truncate)

    def open(self, request: ContextRequest) -> Context:
        """The context that is asked for. Raises what `context` raises."""
        return Context(self, plan_of(self, request))
