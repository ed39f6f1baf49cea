"""A model as users of kvarn see it: weights ready to compute, tokenizer and chat template; it makes
contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ..jit.arena import Arena
from ..models.config import ModelConfig
from ..models.passes.transformer import Transformer
from ..models.weights import Weights
from ..ops.arrays import F32
from ..ops.cpu import CPU
from ..ops.device import Device
from ..system.values import count_named
from .attend import Attend, Full
from .attend.encoders import Learned
from .attend.encoders.sidecar import find_encoders
from .chat.template import ChatTemplate
from .context import Context, ContextError
from .context.measuring import measured_keys, measured_queries
from .context.planning.placement import KVPlanner
from .context.planning.plan import plan_of
from .context.planning.request import ContextRequest
from .embedding import Embedder
from .embedding.pooling import EmbeddingError
from .embedding.readers import DecoderReader
from .engine import on_engine
from .gguf import GGUFFile
from .keep import Keep, KeepAll
from .loading.adapters import LoadedAdapters
from .loading.devices import check_kv_on
from .loading.model_info import ModelInfo
from .prefill import Prefill
from .sampling import Sampler
from .sampling.stored import described, stored_options
from .store import Ram, Store
from .tokenizer import Tokenizer

NO_ADAPTERS = LoadedAdapters()
_EXPECTED: dict[str, tuple[type, str]] = {
    "attend": (Attend, 'kvarn.TopK("2%")'),
    "keep": (Keep, 'kvarn.HashEvict("20%")'),
    "store": (Store, 'kvarn.Disk("book/")'),
    "prefill": (Prefill, "kvarn.SparsePrefill()"),
}
"""What an argument of `Model.context` is, and an example."""


class Model:
    """Weights, configuration and tokenizer of one GGUF file; made by `kvarn.load`.

    Raises `ModelError` for a model that cannot be run, naming what is wrong.
    """

    def __init__(
        self,
        file: GGUFFile,
        arena: Arena,
        notice: Callable[[str], None] | None = None,
        device: Device = CPU,
        kv_on: str = "auto",
        adapters: LoadedAdapters = NO_ADAPTERS,
    ) -> None:
        self.file, self.kv_on = file, kv_on
        self.adapters = adapters.facts
        self.config = ModelConfig.from_metadata(self.file.metadata)
        self._notice, self._told_sampling = notice, False
        self._computed: dict[Callable[[GGUFFile], Any], Any] = {}
        if line := self._re_encoded():
            self.tell(line)
        weights = on_engine(
            Weights.load, self.file.tensors, self.config, arena, device, adapters.factors
        )
        self.transformer = Transformer(self.config, weights, max_chunk=device.chunk)

    @property
    def info(self) -> ModelInfo:
        """What stores and methods may know of it."""
        return ModelInfo(
            self.file,
            self.config,
            self.tell,
            lambda: on_engine(measured_keys, self.info, self.transformer),
            lambda: on_engine(measured_queries, self.info, self.transformer),
            self.transformer.weights.sink_logits,
            self._computed,
            self.adapters,
        )

    def tell(self, line: str) -> None:
        """Pass a line that the user should see to the `notice` of `load`."""
        if self._notice is not None:
            self._notice(line)

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """While it is open, `tell` drops its lines: for contexts that no user asked for."""
        notice, self._notice = self._notice, None
        try:
            yield
        finally:
            self._notice = notice

    def sampler(self, **options: Any) -> Sampler:
        """A `Sampler` with these options, for this model.

        For those that are not given, it takes what `general.sampling.*` of the file says, and
        tells so once, or else the defaults. Raises `SamplingError` for a bad value of either.
        """
        Sampler(**options)
        stored = stored_options(self.file.metadata, options)
        if stored and not self._told_sampling and options.get("temp", 1) > 0:
            self._told_sampling = True
            self.tell(
                f"sampling as {self.name}'s file says, where you say nothing: {described(stored)}"
            )
        return Sampler(**stored | options)

    def _re_encoded(self) -> str:
        """A line about tensors that are re-encoded, for lack of kernels; "" if there are none."""
        types = Counter(
            tensor.type.name
            for tensor in self.file.tensors.values()
            if tensor.type.treatment == "re-encoded"
        )
        if not types:
            return ""
        counts = ", ".join(f"{n} of type {name}" for name, n in types.items())
        return f"re-encoding tensors as Q8_0, as kvarn has no kernels for their types: {counts}"

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def fingerprint(self) -> str:
        return self.info.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file; `TokenizerError` if it has none that kvarn knows."""
        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template in the file, if it has one."""
        tokenizer = self.tokenizer
        bos, eos = (
            None if i is None else tokenizer.piece(i).decode("utf-8", "replace")
            for i in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return ChatTemplate.from_metadata(self.file.metadata, bos, eos, tokenizer.control)

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
        if prompts cannot be read as `prefill` says; `WrongValue` for a size that is no count;
        `ContextError` for another argument of a wrong type.
        """
        size = None if n_ctx is None else count_named("n_ctx", n_ctx, 1)
        axes = {"attend": attend, "keep": keep, "store": store, "prefill": prefill}
        for name, value in axes.items():
            kind, example = _EXPECTED[name]
            if value is not None and not isinstance(value, kind):
                raise ContextError(f"{name} is {value!r:.50}, expected one such as {example}")
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
        return self.embedder(pooling).embed(texts, truncate=truncate)

    def embedder(self, pooling: str = "mean") -> Embedder:
        """What `embed` asks, for programs that take either kind of model."""
        if pooling not in ("mean", "last"):
            raise EmbeddingError(f"pooling is {pooling!r:.40}, expected mean or last")
        return Embedder(DecoderReader(self), pooling, self.name)

    def open(self, request: ContextRequest) -> Context:
        """The context that is asked for. Raises what `context` raises."""
        return Context(self, plan_of(self, request))
