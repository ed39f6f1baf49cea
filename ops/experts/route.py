"""Kernels that choose experts and sort tokens by them, see `Routing` and `Pairs`."""

import numpy as np

from ...jit.cached import jit
from ...jit.launch.define import Share, bounds, kernel
from ...jit.launch.views import address
from ...jit.simd import hsum, load_one_f32, load_tail, mask, set_f32, store_tail, vexp
from ..linear.arguments import TOKENS
from .arguments import Choice, Pairs
from .routing import SCORES

SIGMOID, OF_CHOSEN = SCORES.index("sigmoid"), SCORES.index("softmax-of-chosen")
LEAST_SUM = np.float32(2**-14)  # llama.cpp: the smallest normal number of f16
NOTHING = np.float32(-np.inf)


@jit
def _softmax(x, n):
    """The n finite floats at address x, in place."""
    top = load_one_f32(x, 0)
    for i in range(1, n):
        top = max(top, load_one_f32(x, 4 * i))
    total = set_f32(0.0)
    for i in range(0, n, 16):
        e = vexp(load_tail(x, 4 * i, min(n - i, 16)) - set_f32(top))
        total = total + mask(e, 0, n - i, np.float32(0))
        store_tail(x, 4 * i, min(n - i, 16), e)
    inverse = set_f32(np.float32(1) / hsum(total))
    for i in range(0, n, 16):
        store_tail(x, 4 * i, min(n - i, 16), load_tail(x, 4 * i, min(n - i, 16)) * inverse)


@jit
def _sigmoid(x, n):
    """The n floats at address x, in place."""
    one = set_f32(1.0)
    for i in range(0, n, 16):
        e = vexp(set_f32(0.0) - load_tail(x, 4 * i, min(n - i, 16)))
        store_tail(x, 4 * i, min(n - i, 16), one / (one + e))


@jit
def _are_finite(x, n):
    """Whether the n floats at address x are finite."""
    for i in range(n):
        value = load_one_f32(x, 4 * i)
        if value - value != np.float32(0):
            return False
    return True


@jit
def _take_best(values, k, ids, best):
    """ids, best (k,): the k largest of the values (n,), the largest first, the first of equals."""
    n = 0
    for i in range(len(values)):
        if n == k and not values[i] > best[k - 1]:
            continue
        place = min(n, k - 1)
        while place > 0 and values[i] > best[place - 1]:
            best[place], ids[place] = best[place - 1], ids[place - 1]
            place -= 1
        best[place], ids[place] = values[i], i
        n = min(n + 1, k)


@jit
def _leave_out_groups(values, n_used, scores):
    """values (n,) = -inf outside the `n_used` best groups of equal size; scores (groups,)."""
    n_groups = len(scores)
    size = len(values) // n_groups
    for g in range(n_groups):
        first, second = values[g * size], NOTHING
        for i in range(g * size + 1, (g + 1) * size):
            second = max(second, min(first, values[i]))
            first = max(first, values[i])
        scores[g] = first + second if size > 1 else first
    for g in range(n_groups):
        n_better = 0
        for other in range(n_groups):
            above, equal = scores[other] > scores[g], scores[other] == scores[g]
            n_better += above or (equal and other < g)
        if n_better >= n_used:
            for i in range(g * size, (g + 1) * size):
                values[i] = NOTHING


@jit
def _weigh(logits, t, choice, scales, pairs):
    """Weights of what token t chose; logits: address of its scores."""
    ids, weights = pairs.ids[t], pairs.weights[t]
    k = len(ids)
    for j in range(k):
        weights[j] = load_one_f32(logits, 4 * ids[j])
    if choice.scores == OF_CHOSEN:
        _softmax(address(weights), k)
    factor = np.float32(choice.scale)
    if choice.normalised:
        total = np.float32(0)
        for j in range(k):
            total += weights[j]
        factor /= max(total, LEAST_SUM)
    for j in range(k):
        weights[j] *= factor
        if scales:
            weights[j] *= load_one_f32(scales, 4 * ids[j])


@jit
def _choose(logits, t, choice, bias, scales, pairs):
    """What token t chooses; logits: address of its own, which become its scores."""
    values = pairs.choice[t]
    n = len(values)
    if not _are_finite(logits, n) or (bias and not _are_finite(bias, n)):
        for j in range(len(pairs.ids[t])):
            pairs.ids[t, j], pairs.weights[t, j] = j, np.float32(np.nan)
        return
    if choice.scores == SIGMOID:
        _sigmoid(logits, n)
    elif choice.scores != OF_CHOSEN:
        _softmax(logits, n)
    for i in range(n):
        values[i] = load_one_f32(logits, 4 * i)
        if bias:
            values[i] += load_one_f32(bias, 4 * i)
    if choice.n_groups > 1:
        _leave_out_groups(values, choice.n_groups_used, pairs.of_groups[t])
    _take_best(values, len(pairs.ids[t]), pairs.ids[t], pairs.weights[t])
    _weigh(logits, t, choice, scales, pairs)


@kernel
def route_kernel(
    share: Share, logits: int, n_tokens: int, choice: Choice, bias: int, scales: int, pairs: Pairs
):
    """pairs.ids and weights of each token. Addresses: logits float32 (T, n), which is overwritten;
    bias and scales float32 (n,), or 0."""
    first, stop = bounds(share, n_tokens)
    for t in range(first, stop):
        row = logits + 4 * pairs.choice.shape[1] * t
        _choose(row, t, choice, bias, scales, pairs)


@kernel
def sort_kernel(share: Share, n_tokens: int, pairs: Pairs):
    """Sort the pairs of n_tokens tokens by expert: all other fields of `Pairs`. For one thread."""
    ids, counts = pairs.ids, pairs.starts  # until they are known, starts count pairs
    n, k = pairs.choice.shape[1], ids.shape[1]
    for e in range(n):
        counts[e] = 0
    for t in range(n_tokens):
        for j in range(k):
            counts[ids[t, j]] += 1
    n_chosen, start, group = 0, 0, 0
    for e in range(n):
        count = counts[e]
        if count:
            pairs.chosen[n_chosen], pairs.starts[n_chosen], pairs.groups[n_chosen] = e, start, group
            start, group = start + count, group + (count + TOKENS - 1) // TOKENS
            pairs.ends[e] = start - count
            n_chosen += 1
    pairs.starts[n_chosen], pairs.groups[n_chosen], pairs.n_chosen[0] = start, group, n_chosen
    for t in range(n_tokens):
        for j in range(k):
            e = ids[t, j]
            place = pairs.ends[e]
            pairs.ends[e] = place + 1
            pairs.places[t, j], pairs.tokens[place], pairs.experts[place] = place, t, e
