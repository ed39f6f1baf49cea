"""An arm: one way to read and keep a context, which answers all questions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ops.attention.layout import TileLayout
from ...runtime.attend import Full
from ...runtime.keep import KeepAll
from ...runtime.store import Ram, RamStore

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.keep import Keep
    from ...runtime.loading.model_info import ModelInfo
    from ...runtime.model import Model
    from ...runtime.store import Column


@dataclass(frozen=True)
class Arm:
    """A method under its names, as the user wrote them.

    method: how a query reads, as `hash:bits=64`; budget: what it may read, "" where it reads all.
    keep: which tokens stay, as `hashevict`; keep_budget: how many, "" where all do.
    """

    method: str = "full"
    budget: str = ""
    keep: str = "all"
    keep_budget: str = ""
    attend: Attend = field(default_factory=Full)
    keeping: Keep = field(default_factory=KeepAll)

    @property
    def keeps_all(self) -> bool:
        """Whether all tokens stay, so that a pack serves."""
        return self.keeping.keeps_all

    def key(self, model: Model) -> str:
        """What its answers are known by: a digest of all options, and of the names of the indexes
        that it keeps for this model, which tell encoders apart."""
        noting = _Noting()
        model.context(1, self.attend, store=noting).close()
        facts = [repr(self.attend), repr(self.keeping), *sorted(noting.names)]
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=6).hexdigest()

    def __str__(self) -> str:
        words = [self.method, self.budget]
        if self.keep != "all":
            words += ["keep", self.keep, self.keep_budget]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class _Noting(Ram):
    """An empty KV cache that notes which indexes a method wants beside it."""

    names: list[str] = field(default_factory=list)

    def _open(self, model: ModelInfo, n_ctx: int) -> RamStore:
        config = model.config
        layout = TileLayout(config.head_dim)
        return _NotingStore(layout, config.n_layers, config.n_kv_heads, self.names)


class _NotingStore(RamStore):
    def __init__(
        self, layout: TileLayout, n_layers: int, n_kv_heads: int, names: list[str]
    ) -> None:
        super().__init__(layout, n_layers, n_kv_heads)
        self._names = names

    def column(self, name: str, item_bytes: int) -> Column:
        self._names.append(name)
        return super().column(name, item_bytes)
