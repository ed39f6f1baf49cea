"""A loaded model: weights ready to compute, and its tokenizer."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..jit.arena import Arena
from ..models.config import ModelConfig
from ..models.transformer import Transformer
from ..models.weights import Weights
from ..ops.types import treatment_of
from ..system.text import one_line
from .attend import Attend
from .context.context import Context
from .context.reader import CHUNK
from .engine import on_engine
from .gguf import GGUFFile
from .keep import Keep
from .store import Disk, Ram
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .attend.encoders import Learned
    from .chat import ChatTemplate


class Model:
    """Weights, configuration and tokenizer of one GGUF file; made by `kvarn.load`.

    Raises `ModelError` for a model that cannot be run, naming what is wrong.
    """

    def __init__(
        self, file: GGUFFile, arena: Arena, notice: Callable[[str], None] | None = None
    ) -> None:
        self.file = file
        self.config = ModelConfig.from_metadata(self.file.metadata)
        self._notice = notice
        if line := self._re_encoded():
            self.tell(line)
        weights = on_engine(Weights.load, self.file.tensors, self.config, arena)
        self.transformer = Transformer(self.config, weights, max_chunk=CHUNK)

    def tell(self, line: str) -> None:
        """Pass a line worth telling to whoever loaded the model and wanted to hear."""
        if self._notice is not None:
            self._notice(line)

    def _re_encoded(self) -> str:
        """One line about the tensors that kvarn has no kernels for and re-encodes; "" if none."""
        types = Counter(
            tensor.type.name
            for tensor in self.file.tensors.values()
            if treatment_of(tensor.type) == "re-encoded"
        )
        if not types:
            return ""
        counts = ", ".join(f"{n} of type {name}" for name, n in types.items())
        return f"re-encoding tensors as Q8_0, for which kvarn has kernels: {counts}"

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def name(self) -> str:
        """`general.name`, or the file's name where the file has none, as `one_line` writes it."""
        name = self.file.metadata.get("general.name")
        return one_line(name if isinstance(name, str) and name else self.path.stem)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this model from others, see `fingerprint.fingerprint`."""
        from .fingerprint import fingerprint

        return fingerprint(self.file)

    @cached_property
    def tokenizer_digest(self) -> str:
        """What tells its tokenizer from others, see `fingerprint.tokenizer_digest`."""
        from .fingerprint import tokenizer_digest

        return tokenizer_digest(self.file)

    @cached_property
    def encoders(self) -> Learned | None:
        """Learned hash encoders beside the file or in it, see `attend.sidecar.find_encoders`."""
        from .attend.sidecar import find_encoders

        return find_encoders(self.file)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file; `TokenizerError` where it has none that kvarn knows."""
        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template in the file, if it has one."""
        from .chat import ChatTemplate

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
        store: Ram | Disk | None = None,
    ) -> Context:
        """A context for up to `n_ctx` tokens (default: the model's training length).

        It is empty, or holds what `store=Disk(…)` holds already. Raises `StoreError` when the KV
        cache of that many tokens would not fit in memory, or the pack cannot be used.
        """
        return Context(
            self, self.config.n_ctx_train if n_ctx is None else n_ctx, attend, keep, store
        )
