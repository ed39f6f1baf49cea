"""What keep methods with a budget share: the budget; for most of them, opening a cache of slots."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from ...system.values import Budget
from ..methods import called, option
from ..store import SlotPlan
from .base import Keep, KeepError
from .cache import KVCache, closed_on_error, layer_views
from .everything import open_all
from .slots import Ring, SlotAttention, SlotCache, Slots

if TYPE_CHECKING:
    from ...ops.evict import Staging
    from ..attend import Attend
    from ..loading.model_info import ModelInfo
    from ..store import SlotStore, Store


@dataclass(frozen=True)
class Evicting(Keep):
    """A keep method with a budget: how many tokens each KV head of a global layer keeps.

    budget: a number of tokens, or a share of `n_ctx` such as "20%". A context that evicts reads on
    beyond `n_ctx` tokens. Layers with a window keep their window. Raises `KeepError` for other
    budgets, and for one that protected tokens use up.
    """

    always_named: ClassVar[tuple[str, ...]] = ()
    """Options that packs name even where they have their default."""

    budget: Budget | str | int = option(  # noqa: RUF009 - a field
        Budget.parse("20%"),
        "tokens that stay, where not all do: a share of --ctx (20%) or a count",
        Budget,
    )

    def __post_init__(self) -> None:
        budget = Budget.named(f"keep {self.name}: budget", self.budget, KeepError)
        object.__setattr__(self, "budget", budget)
        if budget.number:
            self._check(budget.number, f"a budget of {budget} tokens")

    @property
    @abstractmethod
    def protected(self) -> int:
        """Tokens of a full cache that the next token cannot replace."""

    def shortened(self, n_slots: int) -> Evicting:
        return replace(self, budget=n_slots)

    def evicts(self, n_ctx: int) -> bool:
        slots = self.slots(n_ctx)
        if slots >= n_ctx:
            return False
        self._check(slots, f"a budget of {self.budget} of {n_ctx} tokens")
        return True

    def open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        if not self.evicts(n_ctx):
            notice = (
                f"nothing is evicted: --keep-budget {self.budget} has room for all {n_ctx} tokens"
            )
            return open_all(model, n_ctx, max_chunk, attend, store, notice)
        if attend.needs_all_tokens:
            raise KeepError(
                f"keep {self.name} cannot be combined with {called(attend)} attention, which needs "
                f"all tokens in order: use keep all, or attention that does not ({_over_slots()})"
            )
        return self._open(model, n_ctx, max_chunk, attend, store)

    @abstractmethod
    def _open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        """The cache of a context that evicts."""

    def __str__(self) -> str:
        """The method and its options, except for the budget, as packs name it: all those that only
        Python gives, `always_named`, and of the command line's those that are not the defaults."""
        declared, options = self.options(), []
        for f in fields(self):
            value = getattr(self, f.name)
            named = f.name not in declared or f.name in self.always_named
            if named or (f.name != "budget" and value != f.default):
                options.append(f"{f.name}={value}")
        return " ".join([self.name, *options])

    def slots(self, n_ctx: int) -> int:
        """The budget as a number of slots, in a context of `n_ctx` tokens."""
        assert isinstance(self.budget, Budget)
        return self.budget.tokens(n_ctx)

    def _check(self, slots: int, what: str) -> None:
        if slots <= self.protected:
            raise KeepError(
                f"keep {self.name}: {what} leaves nothing to evict beside {self.protected} "
                f"protected tokens; use at least {self.protected + 1}"
            )


@dataclass(frozen=True)
class Replacing(Evicting):
    """A keep method by which each token, once the slots are full, takes the slot of another."""

    @abstractmethod
    def open_layer(self, store: SlotStore, layer: int, staging: Staging) -> Slots:
        """The slots of one global layer; `staging` is shared by all layers."""

    def _open(
        self, model: ModelInfo, n_ctx: int, max_chunk: int, attend: Attend, store: Store
    ) -> KVCache:
        from ...ops.evict import Staging

        budget, config = self.slots(n_ctx), model.config
        sizes = tuple(layer.window or budget for layer in config.layers)
        opened = store.open(model, n_ctx, SlotPlan(str(self), sizes))
        with closed_on_error(opened):
            heads, most = config.n_kv_heads, max(sizes)
            staging = Staging(opened.layout, config.n_heads // heads, heads, most, max_chunk)
            slots = [
                self.open_layer(opened, i, staging)
                if layer.window is None
                else Ring(opened, i, staging, sinks=0)
                for i, layer in enumerate(config.layers)
            ]
            # The slots hold just the tokens of the window, not in the order of positions.
            layers = [replace(layer, window=None) for layer in config.layers]
            views = layer_views(model, layers, opened, most, max_chunk)
            bound = attend.open(model, opened, most)
            return SlotCache(opened, bound, SlotAttention(views, slots, bound), slots, budget)


def _over_slots() -> str:
    """The methods that attend over slots, by their names."""
    from ..attend import ATTENDS

    return ", ".join(name for name, one in ATTENDS.items() if not one().needs_all_tokens)
