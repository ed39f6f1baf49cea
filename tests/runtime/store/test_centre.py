"""Keys in 4 bits lack their mean, which no attention notices."""

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import kvarn
from kvarn import Disk, Ram
from kvarn.jit import kernel_cache
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime import model as model_module
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.loading.load import load
from kvarn.runtime.loading.model_info import ModelInfo
from kvarn.runtime.model import Model
from kvarn.runtime.store import KVStore, PackError, RamStore, SlotPlan
from kvarn.runtime.store.centre import has_centre, mean_keys
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.ram.slots import SlotStore

from ...kv_layers import with_kv_layers
from ..reading import ids_of

N = 700
S = TypeVar("S", bound=KVStore)


@dataclass(frozen=True)
class Shifted(Ram):
    """Keys in a type that rounds little, without what any constant may be."""

    def open(self, model: ModelInfo, n_ctx: int) -> RamStore:
        return self._shifted(super().open(model, n_ctx), model)

    def open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> SlotStore:
        return self._shifted(super().open_slots(model, n_ctx, slots), model)

    def _shifted(self, store: S, model: ModelInfo) -> S:
        shape = model.config.n_layers, model.config.n_kv_heads, model.config.head_dim
        drawn = np.random.default_rng(1).normal(scale=0.2, size=shape)
        store.centre = drawn.astype(np.float32)
        return store


@pytest.mark.parametrize(
    "attend",
    [
        kvarn.Full(),
        kvarn.TopK(budget=64, index="flat", sink=4, window=16),
        kvarn.Hash(budget=64, encoders="simhash", sink=4, window=16),
    ],
    ids=["full", "flat", "hash"],
)
def test_methods_attend_as_to_whole_keys(model: Model, attend: kvarn.Full) -> None:
    """All that look at products or signatures; sketches are of keys as stored, so what they choose
    is another, if as good, approximation."""
    whole, shifted = (model.context(N + 40, attend, store=s) for s in (Ram(), Shifted()))
    for context in (whole, shifted):
        context.prefill(ids_of(model, N))
    stored = [read_kv(c.store.segments(0), c.store.layout, 2, 0, N)[0] for c in (whole, shifted)]
    off = shifted.store.centre
    assert off is not None
    np.testing.assert_allclose(
        stored[0] - stored[1], np.broadcast_to(off[0], (N, 2, 32)), atol=0.01
    )
    spread = np.abs(whole.logits).max()
    np.testing.assert_allclose(shifted.logits, whole.logits, atol=0.01 * spread)
    near = 0
    for token in ids_of(model, N)[:32]:  # one by one: recorded, and chosen from among all
        one, other = whole.decode(token), shifted.decode(token)
        near += bool(np.abs(one - other).max() < 0.02 * spread)
    assert near >= 24  # a token at the edge of a choice may be another


def test_networks_sign_stored_keys_as_whole_ones(model: Model) -> None:
    networks = SimHash(64, 3).networks(model.config, 1)
    context = model.context(N, store=Shifted())
    assert context.store.centre is not None
    signatures = []
    for store, signing in (
        (Ram(), networks),
        (Shifted(), networks.for_centred_keys(context.store.centre[1])),
    ):
        context = model.context(N, store=store)
        context.prefill(ids_of(model, N))
        column = context.store.column("signatures", 8)
        signing.sign_keys(context._cache.layers[1], column, 0, N)
        signatures.append(_items(context.store, column.segments(1)[0]))
    differing = np.bitwise_count(signatures[0] ^ signatures[1]).sum()
    assert differing < 0.002 * 64 * 2 * N


def _items(store: KVStore, address: int) -> np.ndarray:
    raw = (ctypes.c_uint64 * (store.n_kv_heads * 1024)).from_address(int(address))
    return np.frombuffer(raw, np.uint64).reshape(store.n_kv_heads, 1024)[:, :N].copy()


def test_the_mean_is_computed_once_and_is_that_of_keys(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = mean_keys(model.info)
    context = model.context(1024, store=Ram("q8_0"))
    context.prefill(ids_of(model, 1000))
    for layer in range(2):
        keys, _ = read_kv(context.store.segments(layer), context.store.layout, 2, 4, 1000)
        around = np.linalg.norm(keys.mean(0) - means[layer], axis=1)
        assert (around < 0.5 * np.linalg.norm(keys, axis=2).mean(0)).all()

    def again(*_: object) -> None:
        raise AssertionError("it was kept")

    monkeypatch.setattr(model_module, "measured_keys", again)
    np.testing.assert_array_equal(mean_keys(model.info), means)


def test_measuring_it_is_said(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    listened = load(model.path, notice=told.append)
    monkeypatch.setattr(kernel_cache, "find", lambda name, parse: None)
    monkeypatch.setattr(model_module, "measured_keys", lambda *_: np.zeros(1))
    monkeypatch.setattr(kernel_cache, "keep", lambda name, payload: None)
    mean_keys(listened.info)
    assert [line.partition(",")[0] for line in told] == [f"measuring the keys of {model.name}"]


def test_only_four_bits_lack_it_and_only_where_scores_are_not_capped(model: Model) -> None:
    config = model.config
    assert has_centre(config, "q4_0")
    assert not has_centre(config, "q8_0") and not has_centre(config, "f16")
    capped = with_kv_layers(config, (replace(l, attention_softcap=30.0) for l in config.kv_layers))
    assert not has_centre(capped, "q4_0")
    assert model.context(64, store=Ram("q4_0", "f16")).store.centre is not None
    assert model.context(64, store=Ram("q4_0", centred=False)).store.centre is None
    assert model.context(64, store=Ram("f16", "q4_0")).store.centre is None
    for centred in (True, False):
        store = Ram("q4_0", "q4_0", centred=centred)
        evicting = model.context(256, keep=kvarn.Streaming(64), store=store)
        assert (evicting.store.centre is not None) == centred


@pytest.mark.parametrize(
    "keep", [kvarn.Streaming(200), kvarn.HashEvict(200)], ids=lambda keep: keep.name
)
def test_slots_lack_the_mean_too(model: Model, keep: kvarn.HashEvict, tmp_path: Path) -> None:
    """In memory and in snapshots."""
    means, q4_0 = mean_keys(model.info), {"k": "q4_0", "v": "q4_0"}
    centred, exact = (model.context(N, keep=keep, store=s) for s in (Ram(**q4_0), Ram("q8_0")))
    for context in (centred, exact):
        context.prefill(ids_of(model, N))
    np.testing.assert_array_equal(centred.store.centre, means)
    for head in range(2):  # of layer 0, whose keys depend on no cache
        both = np.intersect1d(centred.kept_positions(0)[head], exact.kept_positions(0)[head])
        assert len(both) > 100
        stored = []
        for context in (centred, exact):
            keys, _ = read_kv(context.store.segments(0), context.store.layout, 2, 0, 200)
            places = [np.flatnonzero(context.kept_positions(0)[head] == p)[0] for p in both]
            stored.append(keys[places, head])
        lacking = (stored[1] - stored[0]).mean(0)
        assert np.linalg.norm(lacking - means[0, head]) < 0.1 * np.linalg.norm(means[0, head])

    with model.context(N, keep=keep, store=Disk(tmp_path / "new", **q4_0)) as context:
        np.testing.assert_array_equal(context.prefill(ids_of(model, N)), centred.logits)
    assert verify(tmp_path / "new") == []
    with model.context(N, keep=keep, store=Disk(tmp_path / "new")) as context:
        np.testing.assert_array_equal(context.decode(1), centred.decode(1))
    data = bytearray((tmp_path / "new" / "centre").read_bytes())
    data[5] ^= 1
    (tmp_path / "new" / "centre").write_bytes(data)
    assert len(verify(tmp_path / "new")) == 1
    with pytest.raises(PackError, match="centre is damaged"):
        model.context(N, keep=keep, store=Disk(tmp_path / "new"))


def test_methods_choose_among_slots_as_among_whole_keys(model: Model) -> None:
    """As over all tokens, see above; with the same tokens in the slots."""
    for attend in (
        kvarn.TopK(budget=64, index="flat", sink=4, window=16),
        kvarn.Hash(budget=64, encoders="simhash", sink=4, window=16),
    ):
        whole, centred = (
            model.context(N, attend, kvarn.Streaming(300), store) for store in (Ram(), Shifted())
        )
        for context in (whole, centred):
            context.prefill(ids_of(model, N))
        assert centred.store.centre is not None
        spread, near = np.abs(whole.logits).max(), 0
        for token in ids_of(model, N)[:32]:
            one, other = whole.decode(token), centred.decode(token)
            near += bool(np.abs(one - other).max() < 0.02 * spread)
        assert near >= 24
