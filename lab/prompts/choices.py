"""What rows of a prompt might read of the tokens between, and what that gives, in NumPy.

own      what each row chose, by signatures
tail     the same, with the means of blocks for the rest (`--prefill-tail means`)
best     for each row as many tokens with the largest q . k: the best that an index could do
blocks   for 128 rows the blocks of 128 tokens whose mean key has the largest products with the mean
         query: block-sparse attention
union    for each 16 rows the union of what each of them would choose by signatures, of so many that
         the union is no larger
summit   the same by q . k

All read the first and the newest tokens, too, and as many of those between as `own` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvarn.ops.arrays import F32, U32

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .watch import Block

    Mask = NDArray[np.bool_]

CHOICES = {
    "own": "each row its own, by the index",
    "tail": "the same, and the rest by means of blocks",
    "union": "the union of 16 rows, by the index",
    "blocks": "blocks of 128 keys for 128 rows, by means",
    "best": "each row its own, by exact products",
    "summit": "the union of 16 rows, by exact products",
}
KEYS, TOGETHER = 128, 16


class ChoiceFigures(NamedTuple):
    """Means over rows and query heads.

    n_tokens: read of those between, for each row and KV head; covered: share of the softmax; error:
    ‖o - o_full‖ / ‖o_full‖.
    """

    n_tokens: float
    covered: float
    error: float


def judge(block: Block) -> dict[str, ChoiceFigures]:
    """Each choice for one block of rows."""
    n_kv_heads, found = block.keys.shape[1], []
    for j in range(n_kv_heads):
        found.append(_judge_head(block, j))
    return {name: ChoiceFigures(*np.mean([one[name] for one in found], 0)) for name in CHOICES}


def _judge_head(block: Block, j: int) -> dict[str, ChoiceFigures]:
    """Of one KV head."""
    group = block.q.shape[1] // block.keys.shape[1]
    heads = slice(j * group, (j + 1) * group)
    scores, (first, last) = _scores(block, j), block.candidates
    p = np.exp(scores - scores.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    values = np.ascontiguousarray(block.values[:, j])
    exact = _outputs(p, values)
    lists = [row[j] for row in block.lists]
    n = round(np.mean([len(one) for one in lists]))
    between = scores[:, :, first:last]
    masks = {
        "own": _listed(lists, last)[:, first:],
        "best": np.stack([_union(row[None], len(one)) for row, one in zip(between, lists)]),
        "blocks": _blocks(block, j, n),
        "union": _shared(len(lists), lambda rows: _union_of_lists(block, j, rows, n)),
        "summit": _shared(len(lists), lambda rows: _union(between[rows], n)),
    }
    found = {}
    for name, mask in masks.items():
        read = p.copy()
        read[:, :, first:last] *= mask[:, None]
        covered = read.sum(2, keepdims=True)
        error = _error(_outputs(read, values) / covered, exact)
        found[name] = ChoiceFigures(float(mask.sum(1).mean()), float(covered.mean()), error)
    off = _error(block.out[:, heads], exact)
    found["tail"] = found["own"]._replace(error=off)
    return found


def _scores(block: Block, j: int) -> F32:
    """(T, G, S): of KV head j's query heads, -inf for tokens after the row's own."""
    group = block.q.shape[1] // block.keys.shape[1]
    q = np.ascontiguousarray(block.q[:, j * group : (j + 1) * group]).reshape(-1, block.q.shape[2])
    scores = (q @ np.ascontiguousarray(block.keys[:, j]).T).reshape(len(block.q), group, -1)
    scores = block.layer.softmax.scores(scores)
    for row, position in zip(scores, block.start + np.arange(len(scores)), strict=True):
        row[:, position + 1 :] = -np.inf
    return scores


def _outputs(weights: F32, values: F32) -> F32:
    """(T, G, E), as one matrix product."""
    rows = weights.reshape(-1, weights.shape[2]) @ values
    return rows.reshape(*weights.shape[:2], -1)


def _error(out: F32, exact: F32) -> float:
    norm = np.linalg.norm(exact, axis=2)
    off = np.linalg.norm(out - exact, axis=2)
    return float(np.mean(off / np.maximum(norm, np.finfo(np.float32).tiny)))


def _listed(lists: list[U32], stop: int) -> Mask:
    """(T, stop): what each row lists."""
    mask = np.zeros((len(lists), stop), bool)
    for to, tokens in zip(mask, lists, strict=True):
        to[tokens] = True
    return mask


def _shared(n_rows: int, choose: Callable[[slice], Mask]) -> Mask:
    """(T, between): what each 16 rows read."""
    groups = range(0, n_rows, TOGETHER)
    masks = [choose(slice(t, t + TOGETHER)) for t in groups]
    return np.repeat(masks, TOGETHER, 0)[:n_rows]


def _union_of_lists(block: Block, j: int, rows: slice, n: int) -> Mask:
    """The n tokens that the rows list soonest, as each lists more and more; among those that come
    at once, what most of them list."""
    first, last = block.candidates
    rank = np.zeros(last - first)
    for shorter in (block.lists, *block.shorter):
        named = np.zeros(last - first)
        for row in shorter[rows]:
            named[row[j].astype(int) - first] += 1
        rank = rank + (named > 0) + 0.001 * named * (rank == 0)
    mask = np.zeros(last - first, bool)
    mask[np.argsort(-rank, kind="stable")[:n]] = True
    return mask


def _union(scores: F32, n: int) -> Mask:
    """The n tokens that come first when all rows and query heads (T, G, tokens) name theirs in
    turn, from the highest score on."""
    if n == 0:
        return np.zeros(scores.shape[2], bool)
    rows = scores.reshape(-1, scores.shape[2])
    turn = np.full(rows.shape[1], rows.shape[1])
    top = np.argpartition(-rows, min(n, rows.shape[1] - 1), axis=1)[:, :n]
    for row, tokens in zip(rows, top, strict=True):
        ranked = tokens[np.argsort(-row[tokens], kind="stable")]
        turn[ranked] = np.minimum(turn[ranked], np.arange(len(ranked)))
    mask = np.zeros(rows.shape[1], bool)
    mask[np.argsort(turn, kind="stable")[:n]] = True
    return mask


def _blocks(block: Block, j: int, n: int) -> Mask:
    """(T, between): the blocks that hold n tokens, rounded up to whole blocks."""
    first, last = block.candidates
    group = block.q.shape[1] // block.keys.shape[1]
    query = block.q[:, j * group : (j + 1) * group].mean((0, 1))
    means = block.keys[first:last, j].reshape(-1, KEYS, block.keys.shape[2]).mean(1)
    chosen = np.argsort(-(means @ query), kind="stable")[: -(-n // KEYS)]
    mask = np.zeros((len(means), KEYS), bool)
    mask[chosen] = True
    return np.repeat(mask.reshape(1, -1), len(block.q), 0)
