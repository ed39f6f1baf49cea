"""Contexts that evict read on beyond their size: the oracle is one that is large enough."""

from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.models.config.layers import AttentionConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import AttentionScratch
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.evict import Staging
from kvarn.ops.evict.api import LAST_POSITION
from kvarn.ops.reference.evict import farthest_slot, ring_slot, signatures
from kvarn.runtime.attend import LayerView
from kvarn.runtime.attend.full import FullAttention
from kvarn.runtime.cache.slots import SlotCache
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.keep import EvictingKeep, SlotParts
from kvarn.runtime.keep.scored.queries import Queries
from kvarn.runtime.model import Model
from kvarn.runtime.store import SlotStore

from ..kv_layers import with_kv_layers
from .reading import ids_of

GREEDY = kvarn.Sampler(temp=0)
METHODS = [kvarn.Streaming(40), kvarn.HashEvict(40)]
SIZE = 100
"""Tokens of a context of which 700 are read."""


def by_name(keep: EvictingKeep) -> str:
    return keep.name


def plain(model: Model) -> Model:
    return model


def with_windows(model: Model) -> Model:
    """The first layer with a window, which is larger than the context."""
    changed, (first, *others) = copy(model), model.config.kv_layers
    changed.config = with_kv_layers(model.config, (replace(first, window=200), *others))
    return changed


def with_two_rotations(model: Model) -> Model:
    """Other frequencies for contexts beyond 64 tokens than for shorter ones, as in phi3."""
    changed = copy(model)
    changed.config = replace(model.config, rope_tensors="longrope", n_ctx_orig=2 * SIZE)
    half = model.config.head_dim // 2
    factors = [np.full(half, factor, np.float32) for factor in (1.0, 3.0)]
    weights = replace(model.transformer.weights, rope_short=factors[0], rope_long=factors[1])
    changed.transformer = Transformer(changed.config, weights, CHUNK)
    return changed


@pytest.mark.parametrize("change", [plain, with_windows, with_two_rotations])
@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_the_size_of_a_context_changes_no_bit(tiny: Model, keep: EvictingKeep, change) -> None:
    model, ids = change(tiny), ids_of(tiny, 700)
    small, large = (model.context(n, keep=keep) for n in (SIZE, 1 << 20))
    held = []
    for start, stop in ((0, 300), (300, 700)):
        part = ids[start:stop]
        np.testing.assert_array_equal(small.prefill(part), large.prefill(part))
        held.append(small.n_bytes)
    assert held[0] == held[1] == large.n_bytes
    for token in ids[:5]:
        np.testing.assert_array_equal(small.decode(token), large.decode(token))
    for layer in range(model.config.n_layers):
        np.testing.assert_array_equal(small.kept_positions(layer), large.kept_positions(layer))
    one, other = (next(iter(context.read_all_logits(ids[:3]))) for context in (small, large))
    np.testing.assert_array_equal(one, other)


def test_the_two_rotations_differ(tiny: Model) -> None:
    """Or the test above could not fail."""
    model, ids = with_two_rotations(tiny), ids_of(tiny, 50)
    short, long = (model.context(n).prefill(ids) for n in (SIZE, 4 * SIZE))
    assert not np.array_equal(short, long)


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_generation_does_not_end_at_the_size(tiny: Model, keep: EvictingKeep) -> None:
    context = tiny.context(50, keep=keep)
    generation = context.generation("the mill", 120, GREEDY)
    assert len(list(generation.ids(stop_at_eos=False))) == 120
    assert (generation.finish, len(context.tokens) > 100) == ("length", True)


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_a_saved_context_resumes_beyond_its_size(
    tiny: Model, keep: EvictingKeep, tmp_path: Path
) -> None:
    ids = ids_of(tiny, 300)
    with tiny.context(SIZE, keep=keep, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids[:200])
    whole = tiny.context(SIZE, keep=keep)
    whole.prefill(ids[:200])
    with tiny.context(SIZE, keep=keep, store=kvarn.Disk(tmp_path / "pack")) as again:
        assert again.tokens == ids[:200]
        np.testing.assert_array_equal(again.prefill(ids[200:]), whole.prefill(ids[200:]))


def test_contexts_that_keep_all_still_refuse(tiny: Model) -> None:
    for keep in (kvarn.KeepAll(), kvarn.Streaming(SIZE), kvarn.HashEvict("100%")):
        context = tiny.context(SIZE, keep=keep)
        assert context.most_tokens == SIZE
        with pytest.raises(ContextError, match=r"^101 tokens do not fit: .* room for 100; "):
            context.prefill(ids_of(tiny, SIZE + 1))
        assert context.stats.kept is None
        assert "kept_tokens" not in context.stats.as_dict()


def test_statistics_tell_what_was_kept(tiny: Model) -> None:
    context = with_windows(tiny).context(SIZE, keep=kvarn.HashEvict("40%"))
    context.prefill(ids_of(tiny, 30))
    assert "kept 30 of 30 tokens, evicted 0" in str(context.stats)
    context.prefill(ids_of(tiny, 200))
    context.decode(1)
    figures = context.stats.as_dict()
    assert "kept 40 of 231 tokens, evicted 191" in str(context.stats)
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (40, 191)
    assert figures["kept_in_layers"] == [200, 40]
    assert [context.kept_positions(layer).shape[1] for layer in range(2)] == [200, 40]
    context.truncate(0)
    assert "kept 0 of 0 tokens" in str(context.stats)
    context.prefill(ids_of(tiny, 50))
    context.close()
    assert context.stats.as_dict()["evicted_tokens"] == 10


def test_going_beyond_the_training_length_is_told_once(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    model = kvarn.load(tiny_path, notice=told.append)
    for one in (model, model.transformer):
        monkeypatch.setattr(one, "config", replace(model.transformer.config, n_ctx_train=64))
    context = model.context(64, keep=kvarn.Streaming(20))
    context.prefill(ids_of(model, 64))
    assert told == []
    for token in (1, 2):
        context.decode(token)
    context.prefill(ids_of(model, 64))
    assert told == [
        "reading beyond the 64 tokens that the model was trained on: its answers may get worse"
    ]
    for keep in (None, kvarn.Streaming(20)):  # whose size was chosen
        longer = model.context(128, keep=keep)
        longer.prefill(ids_of(model, 100))
        line = f"n_ctx 128 is more than the 64 tokens {model.name} was trained on"
        assert longer.notices.count(line) == 1
    assert len(told) == 1


class Far(list[int]):
    """Tokens after many others, of which nothing but the number is known."""

    before = 0

    def __len__(self) -> int:
        return self.before + super().__len__()


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_a_context_ends_at_the_last_position(tiny: Model, keep: EvictingKeep) -> None:
    """Positions have 31 bits: up to there it reads, and there it stops in words."""
    context = tiny.context(SIZE, keep=keep)
    context.prefill(ids_of(tiny, 60))
    tokens = Far(context.tokens)
    tokens.before = LAST_POSITION - 60 - 3
    context._reader.tokens = context.tokens = tokens
    context.decode(5)
    with pytest.raises(
        ContextError, match=r"3 more tokens do not fit: .* 2,147,483,647 and holds 2,147,483,645"
    ):
        context.prefill([5, 6, 7])
    context.prefill([5, 6])
    kept = context.kept_positions(0)
    assert kept.max() == LAST_POSITION - 1
    assert set(range(4)) <= set(kept[0].tolist())
    generation = context.generation((), 3, GREEDY)
    assert len(list(generation.ids(stop_at_eos=False))) == 1
    assert generation.finish == "context"


@pytest.mark.parametrize("keep", METHODS, ids=by_name)
def test_the_last_positions_evict_as_the_first(keep: EvictingKeep) -> None:
    """The methods' rules in NumPy, token by token, up to the last position there is."""
    layout, n_slots, n = TileLayout(64, "f16", "f16"), 40, 30
    heads, kv_heads, head_dim = 6, 2, 64
    rng = np.random.default_rng(3)
    q = rng.standard_normal((n_slots + n, heads, head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, n_slots + n, kv_heads, head_dim)).astype(np.float32)
    k = k.astype(np.float16).astype(np.float32)
    store = SlotStore(layout, [n_slots], kv_heads)
    store.reserve(n_slots)
    staging = Staging(layout, heads // kv_heads, kv_heads, n_slots, CHUNK)
    parts = SlotParts(store, FullAttention(), staging, n_slots, Queries((), heads, head_dim))
    scratch = AttentionScratch(heads, kv_heads, layout, max_rows=CHUNK, n_ctx=n_slots)
    config = AttentionConfig(
        *(heads, kv_heads, head_dim),
        window=None,
        rope=None,
        attention_scale=0.2,
        attention_softcap=0.0,
    )
    out, start = np.empty_like(q), LAST_POSITION - n
    view = LayerView(0, 0, config, store, scratch, Softmax(0.2))
    slots = keep.open_layer(view, parts)
    run = SlotCache(parts, [view], [slots])
    run(0, q[:n_slots], k[:n_slots], v[:n_slots], out[:n_slots])
    run.begin(start, len(q) - n_slots - 1, prompt=True)
    run(0, q[n_slots:-1], k[n_slots:-1], v[n_slots:-1], out[n_slots:-1])
    run.begin(LAST_POSITION - 1, 1, prompt=False)
    run(0, q[-1:], k[-1:], v[-1:], out[-1:])
    planes = np.random.default_rng((0, 0)).standard_normal((16, head_dim)).astype(np.float32)
    query_bits, key_bits = signatures(q, planes), signatures(k, planes)
    for j in range(kv_heads):
        kept, rows = list(range(n_slots)), list(range(n_slots))
        for i in range(n_slots, n_slots + n):
            p = start + i - n_slots
            if keep.name == "streaming":
                slot = ring_slot(p, n_slots, 4)
            else:
                here = query_bits[i, 3 * j : 3 * j + 3]
                slot = farthest_slot(here, key_bits[rows, j], np.array(kept), p, 4, 10)
            kept[slot], rows[slot] = p, i
        assert slots.kept_positions(LAST_POSITION)[j].tolist() == kept
