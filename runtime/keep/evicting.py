"""What keep methods that evict share: a budget, and the slots that it gives each layer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from ...system.values import Budget
from ..methods import option
from ..store import SlotPlan
from .base import Keep, KeepError

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ..attend import LayerView
    from .slots import LayerSlots, SlotParts


@dataclass(frozen=True)
class EvictingKeep(Keep):
    """A keep method with a budget: how many tokens each KV head of a global layer keeps.

    budget: a number of tokens, or a share of `n_ctx` such as "20%". A context that evicts reads on
    beyond `n_ctx` tokens. Layers with a window keep their window. Raises `KeepError` for other
    budgets, and for one that protected tokens use up.
    """

    always_named: ClassVar[tuple[str, ...]] = ()
    """Options that packs name even where they have their default."""
    holds_prompts: ClassVar[bool] = False
    """Whether a prompt is held whole, beyond the budget, and then evicted from at once."""
    budget: Budget | str | int = option(  # noqa: RUF009 - a field
        Budget.parse("20%"),
        "tokens that stay, where not all do: a share of --ctx (20%) or a count",
        Budget,
    )

    def __post_init__(self) -> None:
        self.check_fields(KeepError, f"keep {self.name}: ")
        budget = Budget.parse_named(f"keep {self.name}: budget", self.budget, KeepError)
        object.__setattr__(self, "budget", budget)
        if budget.number:
            self._check(budget.number, f"a budget of {budget} tokens")

    @property
    @abstractmethod
    def protected(self) -> int:
        """Tokens of a full cache that the next token cannot replace."""

    @property
    def spare_slots(self) -> int:
        """Slots of a layer beside the budget."""
        return 0

    def shortened(self, n_slots: int) -> EvictingKeep:
        return replace(self, budget=n_slots)

    def evicts(self, n_ctx: int) -> bool:
        n_slots = self.n_slots(n_ctx)
        if n_slots >= n_ctx:
            return False
        self._check(n_slots, f"a budget of {self.budget} of {n_ctx} tokens")
        return True

    def plan(self, config: ModelConfig, n_ctx: int) -> SlotPlan:
        """The slots of each layer. A layer with a window has a slot for each of its tokens."""
        n_slots = self.n_slots(n_ctx) + self.spare_slots
        sizes = tuple(layer.window or n_slots for layer in config.kv_layers)
        whole = (i for i, layer in enumerate(config.kv_layers) if layer.window is None)
        return SlotPlan(str(self), sizes, tuple(whole) if self.holds_prompts else ())

    @abstractmethod
    def open_layer(self, view: LayerView, parts: SlotParts) -> LayerSlots:
        """The slots of one layer without a window."""

    def __str__(self) -> str:
        """The method as packs name it, without its budget: with the options that only Python has,
        those in `always_named`, and others that are not the defaults."""
        declared, options = self.options(), []
        for f in fields(self):
            value = getattr(self, f.name)
            named = f.name not in declared or f.name in self.always_named
            if named or (f.name != "budget" and value != f.default):
                options.append(f"{f.name}={value}")
        return " ".join([self.name, *options])

    def n_slots(self, n_ctx: int) -> int:
        """The budget as a number of slots, in a context of `n_ctx` tokens."""
        assert isinstance(self.budget, Budget)
        return self.budget.tokens(n_ctx)

    def _check(self, n_slots: int, what: str) -> None:
        if n_slots <= self.protected:
            raise KeepError(
                f"keep {self.name}: {what} leaves nothing to evict beside {self.protected} "
                f"protected tokens; use at least {self.protected + 1}"
            )
