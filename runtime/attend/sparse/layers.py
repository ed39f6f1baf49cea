"""The layers in which a sparse method chooses, and how many tokens it takes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ....ops.select import Range
    from .options import SparseOptions


class ChoosingLayers:
    """Those of one context of n_ctx tokens; dense: layers that read every token by choice."""

    def __init__(
        self, method: SparseOptions, dense: frozenset[int], config: ModelConfig, n_ctx: int
    ) -> None:
        from ....ops.select import Range

        # Of the model's layers: over slots, those with a window look like the others.
        self.indexed = {i for i, layer in enumerate(config.layers) if layer.window is None}
        """Those without a sliding window. Dense ones are among them: they may choose next time."""
        self.choosing = sorted(self.indexed - dense)
        self._method, self._group = method, config.n_heads // config.n_kv_heads
        self._shares = dict(zip(self.choosing, method.shares(len(self.choosing))))
        self.most = max((self.takes(layer, n_ctx) for layer in self.choosing), default=1)
        """The most tokens that a query head takes."""
        self.room = min(n_ctx, method.sink + method.window + self.most * self._group)
        """The most tokens that a KV head reads."""
        self._range = Range
        self.alike: dict[float, list[int]] = {}
        """Those that choose alike, by their share: see `Sparse.shares`."""
        for layer, share in self._shares.items():
            self.alike.setdefault(share, []).append(layer)

    def takes(self, layer: int, stored: int) -> int:
        """How many of `stored` tokens a query head takes in a layer that chooses."""
        return self._method.most(stored, self._group, self._shares[layer])

    def among(self, layer: int, stored: int) -> Range | None:
        """The tokens that the last of `stored` chooses from; None where it reads all."""
        method, share = self._method, self._shares.get(layer)
        if share is None or method.reads_all(stored, self._group, share):
            return None
        return self._range(method.sink, stored - method.window, stored)
