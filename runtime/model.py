"""A model as users of kvarn see it, with its chat template; it makes contexts."""

from __future__ import annotations

from functools import cached_property

from .attend import Attend
from .attend.encoders import Learned
from .attend.encoders.sidecar import find_encoders
from .chat.template import ChatTemplate
from .context import Context
from .keep import Keep
from .loading.loaded_model import LoadedModel
from .prefill import Prefill
from .store import Store


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
        return ChatTemplate.from_metadata(self.file.metadata, bos, eos)

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
