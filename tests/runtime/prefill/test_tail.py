"""What rows did not choose: counted by means of blocks, as the formula says."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import SparsePrefill
from kvarn.runtime.store import Ram

from ..reading import ids_of
from .sparse_reading import SPARSE, Spy, chosen_by_formula, kv_of, read_prompt, same_kv

BLOCK = 32


def _blocks(column, layer: int, n_kv_heads: int, padded: int, n_full: int) -> np.ndarray:
    """The block of each token of full segments, (J, tokens): the last 1,024 bytes that a KV head's
    part of a segment uses."""
    found, head_bytes = [], SEGMENT * column.item_bytes
    used = 2 * 64 * -(-16 * (2 * padded + padded // 8) // 64) + SEGMENT  # two tiles, q8_0
    for base in column.segments(layer)[:n_full]:
        raw = (ctypes.c_uint8 * (n_kv_heads * head_bytes)).from_address(int(base))
        heads = np.frombuffer(raw, np.uint8).reshape(n_kv_heads, head_bytes)
        found.append(heads[:, used - SEGMENT : used].astype(int))
    return np.concatenate([x + BLOCK * i for i, x in enumerate(found)], 1)


def _formula(q, keys, values, lists, blocks, scale: float) -> np.ndarray:
    """Softmax over the listed tokens and the means of blocks, weighed by what is left of them."""
    out, group = np.empty(q.shape), len(q) // keys.shape[1]
    for h, x in enumerate(q.astype(np.float64)):
        own, k, v = (
            lists[h // group],
            *(y[:, h // group].astype(np.float64) for y in (keys, values)),
        )
        order = np.argsort(blocks[h // group], kind="stable").reshape(-1, BLOCK)
        left = (~np.isin(order, own)).sum(1)
        mean_k, mean_v = k[order].mean(1), v[order].mean(1)
        p = np.r_[np.exp(scale * k[own] @ x), left * np.exp(scale * mean_k @ x)]
        out[h] = p @ np.r_[v[own], mean_v] / p.sum()
    return out


def test_rows_count_the_means_of_what_they_did_not_choose(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the formula with exact means; those of the column have 8 bits."""
    spy = Spy(monkeypatch)
    context, _ = read_prompt(model, SPARSE)
    column = context._cache.attend._tail.column
    n_rows = 0
    for layer, q, start, out in spy.calls:
        if start < 1024:
            continue
        store, scale = layer.store, layer.config.attention_scale
        padded, n_full = -(-model.config.head_dim // 32) * 32, start // SEGMENT
        blocks = _blocks(column, layer.index, 2, padded, n_full)
        for row in {0, len(q) - 1}:
            position = start + row
            keys, values = read_kv(store.segments(layer.index), store.layout, 2, 0, position + 1)
            lists = chosen_by_formula(model, layer.index, q[row], keys, position, 40)
            want = _formula(q[row], keys, values, lists, blocks, scale)
            bare = _formula(q[row], keys, values, [np.arange(position + 1)] * 2, blocks, scale)
            assert np.abs(want - bare).max() > 1e-4  # what exact attention would be
            assert np.abs(out[row] - want).max() < 0.01 * np.abs(want).max()
            n_rows += 1
    assert n_rows > 8


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_outputs_are_nearer_with_a_tail(model: Model, kind: str) -> None:
    errors = []
    for tail in ("none", "means"):
        prefill = SparsePrefill(k=40, from_=1024, probe=16, tail=tail)
        context, _ = read_prompt(model, prefill, store=Ram(kind, kind))
        errors.append(context.stats.as_dict()["prompt_layers"][0]["output_error"])
    assert errors[1] < 0.5 * errors[0]


def test_none_has_no_column(model: Model) -> None:
    """And other bits than means."""
    plain, _ = read_prompt(model, replace(SPARSE, tail="none"))
    means, _ = read_prompt(model, SPARSE)
    assert plain._cache.attend._tail is None
    assert not same_kv(plain, means)


def test_its_column_serves_topk_with_means(model: Model) -> None:
    """Which builds its sketches beside means that are there."""
    ids = ids_of(model, 8)
    attend = TopK(budget=40, tail="means")
    late = replace(SPARSE, from_=2700)  # nothing is read sparsely
    both, _ = read_prompt(model, late, attend=attend)
    alone, _ = read_prompt(model, None, attend=attend)
    for token in ids:
        np.testing.assert_array_equal(both.decode(token), alone.decode(token))
    assert all(np.array_equal(a, b) for a, b in zip(kv_of(both), kv_of(alone), strict=True))
