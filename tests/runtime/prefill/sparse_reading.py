"""Prompts read sparsely: a context, what its layers were asked, and the formula of their lists."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import (
    nearest_reference,
    network_reference,
    pack_bits,
    reranked_reference,
)
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import Prefill, SparsePrefill
from kvarn.runtime.prefill.attention import SparsePrompts
from kvarn.runtime.prefill.prompts import PromptAttend
from kvarn.runtime.prefill.sparse import RERANK

from ..reading import ids_of

SPARSE = SparsePrefill(k=40, index="hash", from_=1024)
SKETCH = replace(SPARSE, index="sketch")
N = 2700


def read_prompt(
    model: Model, prefill: Prefill | None, cuts=(N,), attend=None, n: int = N, **options
):
    """A context after n tokens, read in calls that end at `cuts`, and its last logits."""
    ids = ids_of(model, n)
    context = model.context(n + 40, attend, prefill=prefill, **options)
    start = 0
    for stop in cuts:
        logits = context.prefill(ids[start:stop]).copy()
        start = stop
    return context, logits


def kv_of(context) -> list[np.ndarray]:
    store, n = context.store, len(context.tokens)
    return [
        part
        for layer in range(store.n_layers)
        for part in read_kv(store.segments(layer), store.layout, store.n_kv_heads, 0, n)
    ]


def same_kv(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(kv_of(one), kv_of(other), strict=True))


class Spy:
    """Keeps queries and outputs of the calls for prompts."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[PromptAttend] = SparsePrompts
    ) -> None:
        self.calls, inner = [], kind.attend_prompt

        def attend(prompts, layer, q, start, out) -> None:
            inner(prompts, layer, q, start, out)
            self.calls.append((layer, q.copy(), int(start), out.copy()))

        monkeypatch.setattr(kind, "attend_prompt", attend)


def chosen_by_formula(
    model: Model, layer: int, q, keys, position: int, k: int, rerank: int = RERANK
) -> list[np.ndarray]:
    """What the KV heads of a row read, by the formula in NumPy."""
    network = SimHash(32, SEED).networks(model.config, layer).queries[0]

    def signatures(x) -> np.ndarray:
        return pack_bits(network_reference(x, network.weights, network.widths))

    stored = np.stack([signatures(keys[:, j]) for j in range(keys.shape[1])])
    asking = signatures(q).reshape(keys.shape[1], -1)
    last = position // 512 * 512 // 1024 * 1024 - 128
    among = 128, last, position + 1
    if rerank == 1:
        return nearest_reference(asking, stored, 32, among, k, SEED)
    group = len(q) // keys.shape[1]
    scores = np.stack([keys[:, h // group] @ one for h, one in enumerate(q)])
    return reranked_reference(asking, stored, 32, scores, among, (k, rerank * k, SEED))
