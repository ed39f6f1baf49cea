"""Opening the KV cache of a context: the one place that opens a store and an attend method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...models.config.layers import AttentionConfig
from ...ops.attention.layout import SEGMENT, TileLayout
from ...ops.attention.softmax import Softmax
from ...ops.device import Scratch
from ...system.spelling import spelt
from ..attend import ATTENDS, Attend, Full, LayerView
from ..keep import EvictingKeep, Keep, KeepAll, KeepError, Ring, SlotParts
from ..keep.scored.queries import Queries
from ..loading.model_info import ModelInfo
from ..methods import called
from ..prefill import Exact, Prefill
from ..store import KVStore, Store, StoreError
from ..store.windowed import MOST_WINDOW
from .base import KVCache, close_on_error
from .scored import ScoredCache
from .slots import SlotCache
from .whole import WholeCache


@dataclass(frozen=True)
class Axes:
    """The methods of one context, one of each axis."""

    store: Store
    keep: Keep = KeepAll()  # noqa: RUF009 - frozen, without fields
    attend: Attend = Full()  # noqa: RUF009
    prefill: Prefill = Exact()  # noqa: RUF009


def open_cache(model: ModelInfo, n_ctx: int, max_chunk: int, axes: Axes) -> KVCache:
    """The KV cache of a context of `n_ctx` tokens, read at most `max_chunk` at a time.

    The keep method says how many slots each layer needs, if it evicts. The store makes them, and
    the attend method, with the prefill method around it, is opened over that. Raises `StoreError`
    if there is no room, and `KeepError` or `AttendError` if the methods cannot be combined.
    """
    keep, attend = axes.keep, axes.prefill.wrap(axes.attend)
    _check_served(model, axes, n_ctx)
    if isinstance(keep, EvictingKeep) and keep.evicts(n_ctx):
        return _open_slots(model, n_ctx, max_chunk, axes.store, keep, attend)
    store = axes.store.open(model, n_ctx)
    with close_on_error(store):
        layers = _layer_views(model, model.config.attention_layers, store, n_ctx, max_chunk)
        bound = attend.open(model, store, n_ctx)
        return WholeCache(store, bound, layers, n_ctx, _notice(keep, n_ctx), model.tell)


def _check_served(model: ModelInfo, axes: Axes, n_ctx: int) -> None:
    """`StoreError` or `KeepError` for what cannot serve layers that differ in their KV heads, or
    that read the keys and values of others."""
    config = model.config
    if config.one_geometry:
        return
    kind = f"architecture {config.architecture.name}, whose layers differ in their keys and values"
    if any((layer.window or 0) > MOST_WINDOW for layer in config.kv_layers):
        raise StoreError(f"windows of more than {MOST_WINDOW:,} tokens cannot be held for {kind}")
    if isinstance(axes.keep, EvictingKeep) and axes.keep.evicts(n_ctx):
        raise KeepError(f"keep {axes.keep.name} cannot be combined with {kind}: use keep all")


def _notice(keep: Keep, n_ctx: int) -> str:
    """A line where a keep method that could evict does not."""
    if not isinstance(keep, EvictingKeep):
        return ""
    return (
        f"nothing is evicted: {spelt('keep_budget')} {keep.budget} has room for all {n_ctx} tokens"
    )


def _open_slots(
    model: ModelInfo, n_ctx: int, max_chunk: int, store: Store, keep: EvictingKeep, attend: Attend
) -> SlotCache:
    from ...ops.evict import Staging

    if attend.needs_all_tokens:
        others = ", ".join(
            name for name, method in ATTENDS.items() if not method().needs_all_tokens
        )
        raise KeepError(
            f"keep {keep.name} cannot be combined with {called(attend)} attention, which needs "
            f"all tokens in order: use keep all, or attention that does not ({others})"
        )
    config, plan = model.config, keep.plan(model.config, n_ctx)
    opened = store.open_slots(model, n_ctx, plan)
    with close_on_error(opened):
        most, heads = max(plan.sizes), config.n_kv_heads
        room = max(most, SEGMENT) if keep.holds_prompts else most
        # The slots hold just the tokens of a window, not in the order of positions.
        without_windows = [replace(layer, window=None) for layer in config.kv_layers]
        layers = _layer_views(model, without_windows, opened, room, max_chunk)
        bound = attend.open(model, opened, max(n_ctx, most) if keep.holds_prompts else most)
        staging = Staging(opened.layout, config.n_heads // heads, heads, most, max_chunk)
        queries = Queries(plan.whole, config.n_heads, config.head_dim)
        parts = SlotParts(opened, bound, staging, keep.n_slots(n_ctx), queries)
        slots = [
            keep.open_layer(view, parts) if layer.window is None else Ring(view, parts, sinks=0)
            for layer, view in zip(config.kv_layers, layers)
        ]
        if keep.holds_prompts:
            return ScoredCache(parts, layers, slots, n_ctx)
        return SlotCache(parts, layers, slots)


def _layer_views(
    model: ModelInfo, layers: Sequence[AttentionConfig], store: KVStore, n_ctx: int, max_chunk: int
) -> list[LayerView]:
    """The layers of a context whose layers hold up to `n_ctx` tokens each."""
    scratch: dict[tuple[int, int, TileLayout], Scratch] = {}
    logits = [None if x is None else store.device.put(x) for x in model.sink_logits]
    views = []
    numbers = model.config.kv_numbers
    for number, (index, layer, of_sinks) in enumerate(zip(numbers, layers, logits, strict=True)):
        heads = layer.n_heads, store.kv_heads_of(index), store.layout_of(index)
        if heads not in scratch:
            scratch[heads] = store.device.attention_scratch(*heads, max_chunk, n_ctx)
        softmax = Softmax(layer.attention_scale, layer.attention_softcap, of_sinks)
        views.append(LayerView(index, number, layer, store, scratch[heads], softmax))
    return views
