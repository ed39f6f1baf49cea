"""When tokens are indexed makes no difference; packs keep the index of what they hold."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Sparse
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.store import Ram

from ..reading import ids_of
from .test_sparse import MEANS, METHODS, N, name_of, read


@pytest.mark.parametrize("method", METHODS[1:2], ids=name_of)
@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_an_index_does_not_depend_on_when_it_was_built(model: Model, kind: str, method) -> None:
    """Token by token, by chunks, after a cut, or afterwards from the store: the same items."""
    store = Ram(kind, kind)
    context, _ = read(model, method, n=40, steps=20, store=store)
    other = model.context(60, method, store=store)
    other.prefill(ids_of(model, 55))
    other.truncate(40)
    for token in ids_of(model, 60)[40:]:
        other.decode(token)
    for c in (context, other):
        column = c._cache.attend._index.column
        assert column.filled.tolist() == [60, 60]
    before = _items(context, 0)
    np.testing.assert_array_equal(_items(other, 0), before)
    column = context._cache.attend._index.column
    column.filled[:] = 0
    _clear(context, 0)
    seen = []
    context.index(lambda *at: seen.append(at))
    np.testing.assert_array_equal(_items(context, 0), before)
    assert seen == [(1, 2), (2, 2)]


def _items(context, layer: int, n_tokens: int = 60) -> np.ndarray:
    column = context._cache.attend._index.column
    n = column.item_bytes
    raw = (ctypes.c_uint8 * (2 * 1024 * n)).from_address(int(column.segments(layer)[0]))
    return np.frombuffer(raw, np.uint8).reshape(2, 1024, n)[:, :n_tokens].copy()


def _clear(context, layer: int) -> None:
    column = context._cache.attend._index.column
    ctypes.memset(int(column.segments(layer)[0]), 0, 2 * 1024 * column.item_bytes)


def test_means_are_built_when_a_segment_is_full(model: Model) -> None:
    """Token by token, by chunks, after a cut, or afterwards from the store: the same means."""
    ids = ids_of(model, 1030)
    contexts = [model.context(1030, MEANS) for _ in range(2)]
    contexts[0].prefill(ids[:1020])
    assert not _items(contexts[0], 0, 1024).any()
    contexts[1].prefill(ids[:1028])
    contexts[1].truncate(1020)
    contexts[1].decode(1)
    contexts[1].truncate(1020)
    logits = [[c.decode(token).copy() for token in ids[1020:]] for c in contexts]
    np.testing.assert_array_equal(*logits)
    built = _items(contexts[0], 0, 1024)
    assert built.any()
    np.testing.assert_array_equal(_items(contexts[1], 0, 1024), built)
    contexts[0]._cache.attend._index.column.filled[:] = 0
    _clear(contexts[0], 0)
    contexts[0].index()
    np.testing.assert_array_equal(_items(contexts[0], 0, 1024), built)


@pytest.mark.parametrize("method", [*METHODS[1:], MEANS], ids=name_of)
def test_a_pack_keeps_the_index_of_a_model_with_windows(method: Sparse, tmp_path: Path) -> None:
    """Layers with a window have no items and hold none up."""
    windowed, pack = kvarn.load(), kvarn.Disk(tmp_path / "pack")
    assert any(layer.window for layer in windowed.config.kv_layers)
    with windowed.context(1100, method, store=pack) as context:
        context.prefill(ids_of(windowed, 1060))
    assert pack_info(tmp_path / "pack").indexes
    with windowed.context(1100, method, store=pack) as context:
        assert all((column.filled == 1024).all() for column in context.store.columns.values())
    with windowed.context(1100, replace(method, sink=1), store=pack) as context:
        context.index()
        for name, column in context.store.columns.items():
            assert (column.filled == (1024 if name == "frame" else 1060)).all()


def test_layers_that_read_all_are_indexed_for_the_next_time(model: Model, tmp_path: Path) -> None:
    for method in (METHODS[1], METHODS[2], MEANS):
        with model.context(1200, method) as context:
            context.prefill(ids_of(model, N))
            want = context.decode(5).copy()
        pack = kvarn.Disk(tmp_path / name_of(method))
        with model.context(1200, replace(method, dense_layers="1"), store=pack) as context:
            context.prefill(ids_of(model, N))
        with model.context(1200, method, store=pack) as context:
            np.testing.assert_array_equal(context.decode(5), want)
