"""A model as users of kvarn see it, with its chat template; it makes contexts."""

from __future__ import annotations

from functools import cached_property

from ..ops.cpu import CPU
from .attend import Attend, Full
from .attend.encoders import Learned
from .attend.encoders.sidecar import find_encoders
from .chat.template import ChatTemplate
from .context import Context
from .context.placing import Placing
from .engine import on_engine
from .keep import Keep, KeepAll
from .loading.loaded_model import LoadedModel
from .prefill import Exact, Prefill, for_questions
from .store import Ram, Store


class Model(LoadedModel):
    """Weights, configuration and tokenizer of one GGUF file; made by `kvarn.load`."""

    @property
    def encoders(self) -> Learned | None:
        """Learned hash encoders beside the file or in it: `attend.encoders.sidecar`."""
        return self.info.once(find_encoders)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template in the file, if it has one."""
        tokenizer = self.tokenizer
        bos, eos = (
            None if i is None else tokenizer.piece(i).decode("utf-8", "replace")
            for i in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return ChatTemplate.from_metadata(self.file.metadata, bos, eos, tokenizer.control)

    def prefill_of_question(
        self, attend: Attend, keep: Keep, n_ctx: int, store: Store, kv_on: str | None = None
    ) -> Prefill:
        """How a question is read that follows what `store` holds, where nobody says it.

        Exactly where a GPU has K and V, else as `prefill.for_questions` says.
        """
        kv_on = kv_on or self.kv_on
        if kv_on == "gpu":
            return Exact()
        placing = Placing(self, attend, keep, store, Exact())
        there = on_engine(placing.place, n_ctx, kv_on).device
        return for_questions(attend, keep, n_ctx) if there is CPU else Exact()

    def most_tokens(
        self,
        attend: Attend | None = None,
        keep: Keep | None = None,
        store: Store | None = None,
        prefill: Prefill | None = None,
    ) -> int:
        """How many tokens, up to the model's training length, the memory of its GPU has room for.
        0 for a model without one."""
        placing = Placing(
            self, attend or Full(), keep or KeepAll(), store or Ram(), prefill or Exact()
        )
        return on_engine(placing.most_tokens, self.config.n_ctx_train)

    def context(
        self,
        n_ctx: int | None = None,
        attend: Attend | None = None,
        keep: Keep | None = None,
        store: Store | None = None,
        prefill: Prefill | None = None,
        kv_on: str | None = None,
    ) -> Context:
        """A context for up to `n_ctx` tokens (default: the model's training length). Where `keep`
        evicts, it reads on beyond them, and a budget in percent is a share of `n_ctx`. kv_on: where
        K and V are if the model is on a GPU, "auto", "gpu" or "host"; None: as `load` was told.

        It is empty, or holds what the pack of `store=Disk(…)` holds. Raises `StoreError` if the KV
        cache of that many tokens does not fit in memory, or the pack cannot be used; `PrefillError`
        if prompts cannot be read as `prefill` says.
        """
        n_ctx = self.config.n_ctx_train if n_ctx is None else n_ctx
        return Context(self, n_ctx, attend, keep, store, prefill, kv_on)
