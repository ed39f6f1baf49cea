"""Opening the KV cache of a context: the one place that opens a store and an attend method."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...ops.attention.layout import SEGMENT
from ..attend import ATTENDS, LayerView
from ..keep import Evicting, KeepError, Ring, SlotParts
from ..keep.scored.queries import Queries
from ..methods import called
from .base import KVCache, closed_on_error
from .scored import ScoredCache
from .slots import SlotCache
from .whole import WholeCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...models.config import LayerConfig
    from ..attend import Attend
    from ..keep import Keep
    from ..loading.model_info import ModelInfo
    from ..store import KVStore, Store


def open_cache(
    model: ModelInfo, n_ctx: int, max_chunk: int, store: Store, keep: Keep, attend: Attend
) -> KVCache:
    """The KV cache of a context of `n_ctx` tokens, read at most `max_chunk` at a time.

    First the keep method says how many slots each layer needs, if it evicts; then the store makes
    them, and the attend method is opened over that. Raises `StoreError` if there is no room, and
    `KeepError` or `AttendError` if the methods cannot be combined.
    """
    if isinstance(keep, Evicting):
        if keep.evicts(n_ctx):
            return _open_slots(model, n_ctx, max_chunk, store, keep, attend)
        notice = f"nothing is evicted: --keep-budget {keep.budget} has room for all {n_ctx} tokens"
        return _open_whole(model, n_ctx, max_chunk, store, attend, notice)
    return _open_whole(model, n_ctx, max_chunk, store, attend, "")


def _open_whole(
    model: ModelInfo, n_ctx: int, max_chunk: int, store: Store, attend: Attend, notice: str
) -> WholeCache:
    opened = store.open(model, n_ctx)
    with closed_on_error(opened):
        layers = _layer_views(model, model.config.layers, opened, n_ctx, max_chunk)
        bound = attend.open(model, opened, n_ctx)
        return WholeCache(opened, bound, layers, n_ctx, notice, model.tell)


def _open_slots(
    model: ModelInfo, n_ctx: int, max_chunk: int, store: Store, keep: Evicting, attend: Attend
) -> SlotCache:
    from ...ops.evict import Staging

    if attend.needs_all_tokens:
        others = ", ".join(name for name, one in ATTENDS.items() if not one().needs_all_tokens)
        raise KeepError(
            f"keep {keep.name} cannot be combined with {called(attend)} attention, which needs "
            f"all tokens in order: use keep all, or attention that does not ({others})"
        )
    config, plan = model.config, keep.plan(model.config, n_ctx)
    opened = store.open_slots(model, n_ctx, plan)
    with closed_on_error(opened):
        most, heads = max(plan.sizes), config.n_kv_heads
        room = max(most, SEGMENT) if keep.holds_prompts else most
        # The slots hold just the tokens of a window, not in the order of positions.
        without_windows = [replace(layer, window=None) for layer in config.layers]
        layers = _layer_views(model, without_windows, opened, room, max_chunk)
        bound = attend.open(model, opened, max(n_ctx, most) if keep.holds_prompts else most)
        staging = Staging(opened.layout, config.n_heads // heads, heads, most, max_chunk)
        queries = Queries(plan.whole, config.n_heads, config.head_dim)
        parts = SlotParts(opened, bound, staging, keep.n_slots(n_ctx), queries)
        slots = [
            keep.open_layer(view, parts) if layer.window is None else Ring(view, parts, sinks=0)
            for layer, view in zip(config.layers, layers)
        ]
        if keep.holds_prompts:
            return ScoredCache(parts, layers, slots, n_ctx)
        return SlotCache(parts, layers, slots)


def _layer_views(
    model: ModelInfo, layers: Sequence[LayerConfig], store: KVStore, n_ctx: int, max_chunk: int
) -> list[LayerView]:
    """The layers of a context whose layers hold up to `n_ctx` tokens each."""
    config = model.config
    scratch = store.device.attention_scratch(
        config.n_heads, config.n_kv_heads, store.layout, max_chunk, n_ctx
    )
    return [LayerView(i, layer, store, scratch) for i, layer in enumerate(layers)]
