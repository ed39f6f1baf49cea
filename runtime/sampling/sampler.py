"""The options of sampling and the chain of one generation, in llama.cpp's default order."""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from .candidates import Candidates, Floats, SamplingError, best_token, log_softmax, softmax
from .filters import min_p, temperature, top_k, top_p, typical_p
from .penalties import History, add_bias, penalise


@dataclass(frozen=True)
class TokenLogprobs:
    """log p of the chosen token and of the most likely ones, before any sampling option."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen; defaults and order are llama.cpp's.

    logit bias → penalties → top_k → typical_p → top_p → min_p → temperature → draw.
    `temp <= 0` is greedy. `top_k = 0`, `top_p = 1`, `min_p = 0`, `typical_p = 1`,
    `repeat_penalty = 1`, the other penalties 0 and `repeat_last_n = 0` turn a step off;
    `repeat_last_n = -1` penalises the whole context. `seed = None` draws a fresh one.
    `n_probs` is how many alternatives `SamplerState.logprobs` lists.

    Raises `SamplingError` for an option out of its range.
    """

    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    n_probs: int = 0

    def __post_init__(self) -> None:
        for name in ("temp", "presence_penalty", "frequency_penalty"):
            self._check(name, math.isfinite(getattr(self, name)), "a finite number")
        for name in ("top_p", "min_p", "typical_p"):
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "a number from 0 to 1")
        self._check("repeat_penalty", 0 < self.repeat_penalty < math.inf, "a number above 0")
        self._check("repeat_last_n", self.repeat_last_n >= -1, "-1 (all), 0 (none) or more")
        self._check("n_probs", self.n_probs >= 0, "0 or more")
        self._check("seed", self.seed is None or self.seed >= 0, "a number from 0, or none")
        bias = dict(self.logit_bias or {})
        for token, value in bias.items():
            if token < 0 or math.isnan(value) or value == math.inf:
                raise SamplingError(
                    f"sampling: logit_bias gives token {token} the bias {value}, "
                    "expected ids from 0 and finite numbers, or -inf to forbid a token"
                )
        object.__setattr__(self, "logit_bias", MappingProxyType(bias) if bias else None)

    def _check(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise SamplingError(f"sampling: {name} is {getattr(self, name)}, expected {expected}")

    @property
    def penalises(self) -> bool:
        """Whether recent tokens matter at all."""
        changes = (self.repeat_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(changes)

    def start(self) -> "SamplerState":
        """The state of a new generation: its random numbers and its recent tokens."""
        return SamplerState(self)


class SamplerState:
    """One generation: draws tokens and remembers the recent ones. Not for two threads at once.

    `seed` is the one in use, so that a run with a fresh seed can be repeated.
    """

    def __init__(self, options: Sampler) -> None:
        self.options = options
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._history = History(options.repeat_last_n if options.penalises else 0)

    def accept(self, token: int) -> None:
        """Counts a token of the prompt or of the answer for the penalties."""
        self._history.add((token,))

    def accept_all(self, tokens: Iterable[int]) -> None:
        """`accept` for each of `tokens`."""
        self._history.add(tokens)

    def sample(self, logits: Floats) -> int:
        """The next token from `logits`, float32 (V,), which stay as they are.

        Greedy costs one argmax; among equal logits the lowest id wins. Does not `accept`.
        Raises `SamplingError` when no finite logit is left, or on NaN.
        """
        options = self.options
        if options.temp <= 0 and options.typical_p >= 1:
            # No other filter ever drops the best token, so there is nothing to filter.
            return best_token(self.biased(logits))
        kept = self.candidates(logits)
        sums = np.cumsum(softmax(kept.logits), dtype=np.float64)
        drawn = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        return int(kept.ids[min(int(drawn), len(kept) - 1)])

    def biased(self, logits: Floats) -> Floats:
        """Logits after bias and penalties: the same array when there are none."""
        options = self.options
        if options.logit_bias:
            logits = add_bias(logits, options.logit_bias)
        counts = self._history.counts
        if counts:
            logits = penalise(
                logits,
                counts,
                options.repeat_penalty,
                options.presence_penalty,
                options.frequency_penalty,
            )
        return logits

    def candidates(self, logits: Floats) -> Candidates:
        """What the whole chain leaves of `logits`: the tokens to draw from, tempered."""
        options = self.options
        logits = self.biased(logits)
        best_token(logits)  # refuses NaN, which filters would take for a small logit
        kept = top_k(Candidates.of(logits), options.top_k)
        kept = typical_p(kept, options.typical_p)
        kept = min_p(top_p(kept, options.top_p), options.min_p)
        return temperature(kept, options.temp)

    def logprobs(self, logits: Floats, token: int, n: int | None = None) -> TokenLogprobs:
        """Log-softmax of the raw logits for `token` and the best `n` (default `n_probs`)."""
        logs = log_softmax(logits)
        n = self.options.n_probs if n is None else n
        best = top_k(Candidates.of(logits), n).ids if n > 0 else ()
        return TokenLogprobs(
            int(token), float(logs[token]), tuple((int(i), float(logs[i])) for i in best)
        )
