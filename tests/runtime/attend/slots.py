"""Steps over the slots of contexts that evict, and what NumPy chooses for them."""

from dataclasses import dataclass

import numpy as np

from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.reference.select import (
    largest_reference,
    nearest_reference,
    network_reference,
    pack_bits,
    reranked_reference,
)
from kvarn.runtime.attend import Sparse, TopK
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.model import Model

from .spy import Spy


@dataclass
class SlotStep:
    """What one layer was asked, and what it said."""

    layer: int
    q: np.ndarray
    position: int
    stored: int
    out: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    positions: np.ndarray
    softmax: Softmax


class SlotSpy(Spy):
    """Another method; notes its steps over slots."""

    needs_all_tokens = False
    chooses = True

    def __init__(self, method: Sparse) -> None:
        super().__init__(method)
        self.steps = []

    def replaced(self, layer, slots, n_tokens, stored) -> None:
        self.inner.replaced(layer, slots, n_tokens, stored)

    def __call__(self, layer, q, start, out) -> None:
        raise AssertionError("slots are attended by `attend_slots`")

    def attend_slots(self, layer, q, position, stored, out) -> None:
        self.inner.attend_slots(layer, q, position, stored, out)
        store, i = layer.store, layer.index
        keys, values = read_kv(store.segments(i), store.layout, store.n_kv_heads, 0, stored)
        kept = store.kept_positions(i, stored).astype(np.int64)
        self.steps.append(
            SlotStep(i, q.copy(), position, stored, out.copy(), keys, values, kept, layer.softmax)
        )


def chosen(method: Sparse, model: Model, step: SlotStep) -> list[np.ndarray]:
    """The slots that each KV head reads, by the papers' formulas: sinks and window by position,
    the k best of the others."""
    n, k = step.stored, method.budget.number // 2
    taken = (step.positions < method.sink) | (step.positions > step.position - method.window)
    if isinstance(method, TopK):
        scores = np.stack([step.keys[:, h // 2] @ step.q[0, h] for h in range(4)])
        return largest_reference(scores, 2, (0, n, n), k, SEED, taken)
    network = SimHash(32, SEED).networks(model.config, step.layer).queries[0]

    def signatures(x) -> np.ndarray:
        return pack_bits(network_reference(x, network.weights, network.widths))

    stored = np.stack([signatures(step.keys[:, j]) for j in range(2)])
    queries = signatures(step.q[0]).reshape(2, -1)
    if method.rerank == 1:
        return nearest_reference(queries, stored, 32, (0, n, n), k, SEED, taken)
    scores = np.stack([step.keys[:, h // 2] @ step.q[0, h] for h in range(4)])
    few = min(method.rerank * k, n - int(taken.sum(1).max()))
    return reranked_reference(queries, stored, 32, scores, (0, n, n), (k, few, SEED), taken)


def check(method: Sparse, model: Model, step: SlotStep) -> None:
    lists = chosen(method, model, step)
    room, counts = np.zeros((2, step.stored), np.uint32), np.array([len(x) for x in lists])
    for row, tokens in zip(room, lists):
        row[: len(tokens)] = tokens
    assert counts.max() <= method.sink + method.window + method.budget.number < step.stored
    want = gathered_reference(step.q, step.keys, step.values, room, counts, softmax=step.softmax)
    np.testing.assert_allclose(step.out, want, atol=2e-6)
