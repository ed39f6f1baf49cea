"""An arm of an evaluation: the methods with which contexts are read and questions answered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...ops.attention.layout import TileLayout
from ...ops.cpu import CPU
from ...runtime.attend import Full
from ...runtime.keep import KeepAll
from ...runtime.prefill import Exact
from ...runtime.store import Ram, RamStore
from .oracle import Oracle

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.keep import Keep
    from ...runtime.loading.model_info import ModelInfo
    from ...runtime.model import Model
    from ...runtime.prefill import Prefill
    from ...runtime.store import Column


@dataclass(frozen=True)
class Arm:
    """An attend, a keep and a prefill method, and their names as the user wrote them.

    method: the attend method, such as `hash:bits=64`; budget: its budget, "" where it reads all.
    keep: the keep method, such as `hashevict`; keep_budget: its budget, "" where all tokens stay.
    prefill: the prefill method, such as `sparse:k=1024`.
    """

    method: str = "full"
    budget: str = ""
    keep: str = "all"
    keep_budget: str = ""
    attend: Attend = field(default_factory=Full)
    keeping: Keep = field(default_factory=KeepAll)
    prefill: str = "exact"
    reading: Prefill = field(default_factory=Exact)

    @property
    def keeps_all(self) -> bool:
        """Whether all tokens stay, so that a pack can be used."""
        return self.keeping.keeps_all

    def keep_for(self, n_read: int) -> Keep:
        """The keep method of a context that holds so many tokens, before the question."""
        if isinstance(self.keeping, Oracle):
            return replace(self.keeping, context=n_read)
        return self.keeping

    @property
    def is_oracle(self) -> bool:
        """Whether what stays depends on the question."""
        return isinstance(self.keeping, Oracle)

    def key(self, model: Model) -> str:
        """The key of its answers: a digest of all options and of the names of the model's indexes,
        which differ by encoder; on a GPU also of the device and of where K and V may be, because
        logits differ."""
        recording = _Recording()
        model.context(1, self.attend, store=recording, kv_on="host").close()
        read = self.reading.facts(model.info)
        facts = [repr(self.attend), repr(self.keeping), *sorted(recording.names)]
        where = [] if is_on_cpu(model) else [f"{model.transformer.device.name} {model.kv_on}"]
        return _digest(*facts, *([] if read is None else [repr(read)]), *where)

    def pack_name(self, model: Model) -> str:
        """The name of the pack that a context is read into: one for each way of reading."""
        read = self.reading.facts(model.info)
        name = "pack" if read is None else f"pack-{read.mode}-{_digest(repr(read))}"
        return name if is_on_cpu(model) else f"{name}-{model.transformer.device.name}"

    def __str__(self) -> str:
        words = [self.method, self.budget]
        if self.keep != "all":
            words += ["keep", self.keep, self.keep_budget]
        if self.prefill != Exact.name:
            words += ["prefill", self.prefill]
        return " ".join(word for word in words if word)


def is_on_cpu(model: Model) -> bool:
    """Whether the CPU computes it."""
    return model.transformer.device.name == CPU.name


def _digest(*facts: str) -> str:
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class _Recording(Ram):
    """An empty KV cache that records the names of the indexes that a method adds."""

    names: list[str] = field(default_factory=list)

    def open(self, model: ModelInfo, n_ctx: int) -> RamStore:
        config = model.config
        layout = TileLayout(config.head_dim)
        return _RecordingStore(layout, config.n_kv_layers, config.n_kv_heads, self.names)


class _RecordingStore(RamStore):
    def __init__(
        self, layout: TileLayout, n_layers: int, n_kv_heads: int, names: list[str]
    ) -> None:
        super().__init__(layout, n_layers, n_kv_heads)
        self._names = names

    def column(self, name: str, item_bytes: int) -> Column:
        self._names.append(name)
        return super().column(name, item_bytes)
