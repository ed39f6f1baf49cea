"""A loaded model: weights ready to compute, and its tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ...jit.arena import Arena
from ...models.config import ModelConfig
from ...models.transformer import Transformer
from ...models.weights import Weights
from ...ops.cpu import CPU
from ...ops.device import Device
from ..chat.template import ChatTemplate
from ..context.measuring import measured_keys, measured_queries
from ..engine import on_engine
from ..gguf import GGUFFile
from ..sampling import Sampler
from ..sampling.stored import described, stored_options
from ..tokenizer import Tokenizer
from .adapters import LoadedAdapters
from .model_info import ModelInfo

NO_ADAPTERS = LoadedAdapters()


class LoadedModel:
    """Weights, configuration and tokenizer of one GGUF file: what a context computes with.

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
