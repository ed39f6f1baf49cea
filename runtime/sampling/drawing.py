"""What steers the draw by the tokens that were drawn before: Mirostat, and adaptive-p."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .candidates import Candidates, softmax
from .filters import top_k
from .options import SamplingOptions
from .order import ADAPTIVE

_MOST_ESTIMATED = 100
"""Candidates that Mirostat fits Zipf's exponent to, as in llama.cpp."""
_WIDTH, _PEAK, _SHARPNESS = 0.3, 5.0, 10.0
"""Constants of adaptive-p, as in llama.cpp."""


class Steering(Protocol):
    """The last step before a draw, and what it learns of the draw."""

    def steer(self, candidates: Candidates, n_vocab: int) -> Candidates:
        """The candidates to draw from."""

    def record_draw(self, index: int, token: int, p: float) -> None:
        """A token was drawn: its place among what `steer` gave, and its probability there."""

    def accept(self, token: int) -> None:
        """The answer goes on with a token."""


class Mirostat:
    """Keeps the surprise −log₂ p of the drawn tokens near τ: μ ← μ − η (surprise − τ), at first 2τ.

    Version 1 keeps the k best: k = (ε 2^μ / (1 − V^−ε))^(1/s), ε = s − 1, where s is the exponent
    of Zipf's law, s = Σ t_i b_i / Σ t_i², t_i = log((i + 1) / i), b_i = l_i − l_(i+1), over the 100
    best. Version 2 keeps candidates with a surprise up to μ, at least the best.
    Source: Basu et al. 2021; llama.cpp's `llama_sampler_mirostat` and `…_v2`.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._version = options.mirostat
        self._tau, self._eta = options.mirostat_tau, options.mirostat_eta
        self.mu = 2.0 * self._tau

    def steer(self, candidates: Candidates, n_vocab: int) -> Candidates:
        if self._version == 1:
            return top_k(candidates, self._k(candidates, n_vocab))
        with np.errstate(divide="ignore"):
            surprise = -np.log2(softmax(candidates.logits))
        kept = np.flatnonzero(surprise <= np.float32(self.mu))
        if not kept.size:
            return top_k(candidates, 1)
        return candidates.take(kept, ordered=candidates.ordered)

    def _k(self, candidates: Candidates, n_vocab: int) -> int:
        best = top_k(candidates, _MOST_ESTIMATED).logits.astype(np.float64)
        best = best[np.isfinite(best)]
        if best.size < 2:
            return 1
        t = np.log((np.arange(best.size - 1) + 2.0) / (np.arange(best.size - 1) + 1.0))
        s = float(np.sum(t * -np.diff(best)) / np.sum(t * t))
        excess = s - 1.0
        with np.errstate(all="ignore"):
            scale = np.float64(excess) / -np.expm1(-excess * np.log(float(n_vocab)))
            if not np.isfinite(scale):  # the limit at s = 1
                scale = 1.0 / np.log(float(n_vocab))
            k = (scale * np.exp2(self.mu)) ** (1.0 / np.float64(s))
        return max(1, int(min(k, len(candidates)))) if np.isfinite(k) else len(candidates)

    def record_draw(self, index: int, token: int, p: float) -> None:
        self.mu -= self._eta * (-float(np.log2(p)) - self._tau)

    def accept(self, token: int) -> None:
        """See `Steering`."""


class Adaptive:
    """Prefers tokens with a probability near a target, which makes up for those drawn before.

    l_i = 5 − 10 d²/(1 + d), d = |p_i − a| / 0.3, a = 2·target − Σ decay^j p_j / Σ decay^j within 0
    and 1, over the drawn tokens, the last one first; their sums begin as if the target had been hit
    for ever. Source: llama.cpp's `llama_sampler_adaptive_p`.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._target, self._decay = float(options.adaptive_target), float(options.adaptive_decay)
        self._weight = 1.0 / (1.0 - self._decay)
        self._sum = self._target * self._weight
        self._probs = np.empty(0, np.float32)
        self._pending: tuple[int, float] | None = None

    def steer(self, candidates: Candidates, n_vocab: int) -> Candidates:
        if self._target < 0:
            return candidates
        self._probs = softmax(candidates.logits)
        adapted = min(max(2.0 * self._target - self._sum / self._weight, 0.0), 1.0)
        distance = np.abs(self._probs - np.float32(adapted)) / np.float32(_WIDTH)
        logits = np.float32(_PEAK) - np.float32(_SHARPNESS) * distance**2 / (1 + distance)
        logits = np.where(candidates.logits == -np.inf, candidates.logits, logits)
        return Candidates(candidates.ids, logits)

    def record_draw(self, index: int, token: int, p: float) -> None:
        if self._target >= 0:
            self._pending = token, float(self._probs[index])

    def accept(self, token: int) -> None:
        if self._pending is not None and self._pending[0] == token:
            self._sum = self._pending[1] + self._decay * self._sum
            self._weight = 1.0 + self._decay * self._weight
        self._pending = None


def steering_of(options: SamplingOptions) -> Steering | None:
    """What the options steer the draw by; None: nothing."""
    if options.mirostat:
        return Mirostat(options)
    return Adaptive(options) if ADAPTIVE in options.samplers else None
