"""Filters that shrink the set of candidates, each as llama.cpp defines it.

A filter takes `Candidates` and gives `Candidates`; the best token survives every filter but
`typical_p` and `xtc`. Costs are for V = 128K candidates.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from .candidates import Candidates, Floats, Ids, softmax

# Logits in a block: top_k compares the blocks' maxima first, to skip most of the vocabulary.
_BLOCK = 128
# Temperatures below the smallest normal float32 would divide by zero.
_TINY = float(np.finfo(np.float32).tiny)


def top_k(candidates: Candidates, k: int) -> Candidates:
    """The k candidates with the highest logits, best first; k <= 0 keeps all.

    Of equal logits at the border, the lower ids stay. Cost: one pass for block maxima, one
    comparison pass (0.1 ms), no full sort.
    """
    if k <= 0:
        return candidates
    if candidates.ordered:
        return candidates.take(np.arange(min(k, len(candidates))), ordered=True)
    return candidates.take(_best(candidates.logits, k), ordered=True)


def top_p(candidates: Candidates, p: float) -> Candidates:
    """The fewest best candidates whose probabilities sum to at least p (nucleus sampling).

    p >= 1 keeps all, p <= 0 keeps the best one. Source: Holtzman et al. 2020.
    """
    if p >= 1.0:
        return candidates
    logits = candidates.logits
    falling = logits if candidates.ordered else np.sort(logits)[::-1]
    n = _reach(softmax(falling), p, strictly=False)
    if candidates.ordered:
        return candidates.take(np.arange(n), ordered=True)
    # A sort of values costs a fraction of a sort of indices; ties go to the lower ids.
    above = np.flatnonzero(logits > falling[n - 1])
    tied = np.flatnonzero(logits == falling[n - 1])[: n - above.size]
    return candidates.take(np.concatenate((above, tied)), ordered=False)


def min_p(candidates: Candidates, p: float) -> Candidates:
    """The candidates whose probability is at least p times the best one's; p <= 0 keeps all.

    In logits: l_i >= max l + log p, so no softmax is needed. Source: Nguyen et al. 2024.
    """
    if p <= 0.0:
        return candidates
    logits = candidates.logits
    best = logits[0] if candidates.ordered else logits.max()
    lowest = min(best, best + np.float32(np.log(p)))
    return candidates.take(np.flatnonzero(logits >= lowest), ordered=candidates.ordered)


def typical_p(candidates: Candidates, p: float) -> Candidates:
    """The candidates nearest to the expected surprise whose probabilities sum to more than p.

    Sorted by |−log p_i − H|, H = −Σ p_j log p_j; p >= 1 keeps all. The best token may go.
    Source: Meister et al. 2022.
    """
    if p >= 1.0:
        return candidates
    probs = softmax(candidates.logits)
    with np.errstate(divide="ignore"):
        surprise = -np.log(probs)
    seen = probs > 0
    entropy = np.float32(np.sum(probs[seen] * surprise[seen], dtype=np.float64))
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
    n = _reach(probs[nearest], p, strictly=True)
    return candidates.take(nearest[:n], ordered=False)


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Forbids, by a logit of −inf, candidates with l_i < max l − n·σ; n <= 0 changes nothing.

    σ = sqrt(Σ (l_j − mean)² / N) over the N finite logits. Source: Tang et al. 2024.
    """
    if n <= 0.0 or len(candidates) <= 1:
        return candidates
    logits = candidates.logits
    finite = logits[logits != -np.inf].astype(np.float64)
    lowest = np.float32(finite.max() - n * finite.std())
    kept = np.where(logits < lowest, np.float32(-np.inf), logits)
    return Candidates(candidates.ids, kept, candidates.ordered)


def xtc(
    candidates: Candidates, probability: float, threshold: float, draw: Callable[[], float]
) -> Candidates:
    """With `probability`, keep of the candidates with p_i >= threshold only the least likely one.

    threshold > 0.5 changes nothing. draw: uniform numbers from 0 to 1; one is drawn where there are
    two candidates or more. Source: XTC ("exclude top choices"), llama.cpp's `llama_sampler_xtc`.
    """
    if probability <= 0.0 or threshold > 0.5 or len(candidates) < 2 or draw() > probability:
        return candidates
    probs = softmax(candidates.logits)
    likely = np.flatnonzero(probs >= threshold)
    if likely.size < 2:
        return candidates
    least = likely[::-1][np.argmin(probs[likely[::-1]])]
    kept = np.flatnonzero((probs < threshold) | (np.arange(len(candidates)) == least))
    return candidates.take(kept, ordered=candidates.ordered)


def dynamic_temperature(
    candidates: Candidates, temp: float, spread: float, exponent: float
) -> Candidates:
    """`temperature` by the entropy H of N candidates; spread <= 0: `temp` itself.

    low + (high − low) · (H / log N) ^ exponent, low = max(0, temp − spread), high = temp + spread.
    Source: llama.cpp's `llama_sampler_temp_ext`.
    """
    if spread <= 0.0:
        return temperature(candidates, temp)
    if len(candidates) <= 1:
        return candidates
    probs = softmax(candidates.logits)
    seen = probs[probs > 0].astype(np.float64)
    entropy = -float(np.sum(seen * np.log(seen)))
    low, high = max(0.0, temp - spread), temp + spread
    share = max(0.0, entropy / np.log(len(candidates)))
    return temperature(candidates, low + (high - low) * share**exponent)


def temperature(candidates: Candidates, temp: float) -> Candidates:
    """l_i / temp; temp <= 0 keeps the best candidate alone (greedy).

    Where that is beyond float32, (l_i − max l) / temp, which has the same probabilities.
    """
    if temp <= 0.0:
        return candidates.take(np.argmax(candidates.logits, keepdims=True), ordered=True)
    logits, divisor = candidates.logits, np.float32(max(temp, _TINY))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = logits / divisor
        if not np.isfinite(scaled.max()):
            scaled = (logits - logits.max()) / divisor
    return Candidates(candidates.ids, scaled, candidates.ordered)


def _best(keys: Floats, k: int) -> Ids:
    """Indices of the k highest keys, highest first, equal keys by index."""
    k = min(k, keys.size)
    blocks = keys.size // _BLOCK
    pool: Ids | None = None
    if blocks > 2 * k:
        # k block maxima are k keys, so the k-th of them is a lower bound of the k-th key.
        maxima = keys[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        bound = np.partition(maxima, blocks - k)[blocks - k]
        pool = np.flatnonzero(keys >= bound)
        keys = keys[pool]
    if keys.size > 4 * k:
        kth = np.partition(keys, keys.size - k)[keys.size - k]
        near = np.flatnonzero(keys >= kth)
        pool = near if pool is None else pool[near]
        keys = keys[near]
    order = np.argsort(-keys, kind="stable")[:k]
    return order if pool is None else pool[order]


def _reach(probs: Floats, p: float, *, strictly: bool) -> int:
    """Number of leading probabilities whose sum reaches p: at least 1, at most all."""
    sums = np.cumsum(probs, dtype=np.float64)
    side: Literal["left", "right"] = "right" if strictly else "left"
    return min(int(np.searchsorted(sums, p, side=side)) + 1, probs.size)
