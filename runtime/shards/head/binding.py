"""Opening a context over shards: which of them fit its pack, and each other."""

from __future__ import annotations

from ....ops.attention.layout import SEGMENT
from ...attend import Attend, AttendError, BoundAttend, Sparse
from ...attend.hash import SignatureIndex
from ...attend.indexes import SketchIndex
from ...attend.indexes.sketches import ITEMS
from ...attend.sparse import TokenIndex
from ...attend.sparse.centred import names_of
from ...attend.sparse.frame import averaged
from ...loading.model_info import ModelInfo
from ...store import KVStore
from ...store.disk.format.log import KV
from ...store.disk.store import DiskStore
from ..addresses import Shards
from ..greeting import ShardFacts, digest_of
from ..links import Links
from ..part import Part
from .choice import ShardedChoice
from .full import ShardedFull
from .local import LocalPart


def open_sharded(
    shards: Shards,
    method: Attend,
    each: bool,
    model: ModelInfo,
    store: DiskStore,
    n_ctx: int,
) -> BoundAttend:
    """A method over a pack and its shards; each: see `ShardedChoice.attach`.

    Raises `ShardError`, and `AttendError` for a model whose layers differ in their heads."""
    if not model.config.one_geometry:
        raise AttendError("shards do not serve models whose layers differ in keys and values")
    manifest = store.folder.manifest
    kv = f"{manifest.k_type}/{manifest.v_type}"
    index = index_of(method, model, store)
    columns = _columns_of(index, len(store.saved.tokens))

    def mismatch(facts: ShardFacts) -> str:
        """What of a shard does not fit, or ""."""
        if facts.kv != kv:
            return f"its K and V are {facts.kv}, those of pack {store.folder.path} {kv}"
        n_segments = facts.stop // SEGMENT
        same = facts.pack == manifest.id and facts.stop <= store.saved_items(KV)
        if not same or facts.digest != digest_of(store, n_segments):
            return f"it holds another pack than {store.folder.path}, or other tokens in it"
        missing = [name for name in columns if name not in facts.columns]
        if missing:
            return (
                f"its pack has no index {missing[0]}: `kvarn pack index NAME --method "
                f"{method.name}` makes it, then start the shard again"
            )
        return ""

    links = Links(shards.addresses, shards.token, mismatch)
    return bind(links, method, index, each, model, store, n_ctx)


def index_of(method: Attend, model: ModelInfo, store: KVStore) -> TokenIndex | None:
    """The index by which a method chooses."""
    return method.make_index(model, store) if isinstance(method, Sparse) else None


def bind(
    links: Links,
    method: Attend,
    index: TokenIndex | None,
    each: bool,
    model: ModelInfo,
    store: KVStore,
    n_ctx: int,
) -> BoundAttend:
    """A method over the tokens of shards, and those of a store after them."""
    local = LocalPart(Part(store, links.stop, n_ctx, many=False), store)
    layers = model.config.attention_layers
    called = frozenset(i for i, layer in enumerate(layers) if layer.window is None)
    full = ShardedFull(links, local, called)
    if not isinstance(method, Sparse) or index is None:
        return full
    dense = method.dense_in(model.config)
    choice = ShardedChoice(method, dense, model.config, store, n_ctx, index)
    return choice.attach(full, links, local, each)


def _columns_of(index: TokenIndex | None, n_tokens: int) -> list[str]:
    """The columns that each shard of a pack with so many tokens needs."""
    if isinstance(index, SignatureIndex):
        return [index.encoder.name]
    return names_of(ITEMS, averaged(n_tokens)) if isinstance(index, SketchIndex) else []
