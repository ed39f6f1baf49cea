"""Filled contexts: every token is a read one with its share of noise, in any store."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.context import Context, ContextError, filling
from kvarn.runtime.context.filling import NOISE, FillError
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, KVStore, Ram

from ..reading import ids_of

READ, DEPTH = 700, 2500  # neither is a multiple of a segment


def filled(model: Model, store: Ram | Disk, attend: kvarn.Hash | None = None) -> Context:
    context = model.context(DEPTH + 8, attend, store=store)
    context.prefill(ids_of(model, READ))
    context.fill(DEPTH)
    return context


def stored(store: KVStore, layer: int = 0, stop: int = DEPTH) -> tuple[np.ndarray, np.ndarray]:
    return read_kv(store.segments(layer), store.layout, store.n_kv_heads, 0, stop)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_filled_tokens_are_read_ones_with_noise(tiny: Model, kv_type: str) -> None:
    context = filled(tiny, Ram(kv_type, kv_type))
    assert len(context.tokens) == DEPTH
    store = context.store
    for layer in range(store.n_layers):
        for rows in stored(store, layer):
            real, repeated = rows[:READ], rows[READ : 3 * READ].reshape(2, READ, *rows.shape[1:])
            spread = real.std(0)
            noise = (repeated - real) / spread
            # Quantising what is there once more adds an error to the noise, a 4-bit step at most.
            assert NOISE * 0.95 < noise.std() < NOISE * (1.4 if kv_type == "q4_0" else 1.05)
            assert abs(noise.mean()) < 0.02
            assert not np.array_equal(repeated[0], repeated[1])


def test_the_same_in_memory_and_on_disk_and_saved(tiny: Model, tmp_path: Path) -> None:
    memory = filled(tiny, Ram("q8_0", "q8_0"))
    with filled(tiny, Disk(tmp_path / "pack", "q8_0", "q8_0")) as disk:
        for one, other in zip(stored(memory.store), stored(disk.store)):
            np.testing.assert_array_equal(one, other)
    with tiny.context(DEPTH + 8, store=Disk(tmp_path / "pack", read_only=True)) as again:
        assert again.tokens == memory.tokens
        for one, other in zip(stored(memory.store), stored(again.store)):
            # The last token was read for real when it was saved: what follows it is known.
            np.testing.assert_array_equal(one[:-1], other[:-1])


def test_decoding_goes_on_after_it_with_the_whole_index(tiny: Model) -> None:
    context = filled(tiny, Ram(), kvarn.Hash(budget=64, sink=4, window=16))
    layers = []
    context.index(lambda done, total: layers.append((done, total)))
    assert layers == [(1, 2), (2, 2)]
    logits = context.decode(5).copy()
    assert np.isfinite(logits).all()
    assert context.stats.layers[0].stored_tokens == (DEPTH + 1) * tiny.config.n_kv_heads
    context.truncate(DEPTH)
    np.testing.assert_array_equal(context.decode(5), logits)


def test_what_cannot_be_filled_is_refused(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContextError, match="must hold at least one token"):
        tiny.context(64).fill(32)
    context = tiny.context(64)
    context.prefill([1, 2, 3])
    for depth in (2, 65):
        with pytest.raises(ContextError, match=f"up to {depth}"):
            context.fill(depth)
    evicting = tiny.context(64, keep=kvarn.Streaming(16))
    evicting.prefill([1, 2, 3])
    with pytest.raises(FillError, match="keeps all"):
        evicting.fill(32)
    monkeypatch.setattr(filling, "available_bytes", lambda: 1000)
    large = tiny.context(DEPTH)
    large.prefill([1, 2, 3])
    with pytest.raises(FillError, match=r"1 MiB more .* 1000 B of memory is available"):
        large.fill(DEPTH)
    assert large.tokens == [1, 2, 3]
