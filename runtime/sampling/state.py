"""The chain of one generation, in llama.cpp's default order."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .candidates import Candidates, Floats, best_token, log_softmax, softmax
from .constraints.matcher import Matcher
from .errors import SamplingError
from .filters import min_p, temperature, top_k, top_p, typical_p
from .options import SamplingOptions
from .penalties import History, add_bias, penalise

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenLogprobs:
    """log p of the chosen token and of the most likely ones, before any sampling option."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class SamplerState:
    """One generation: draws tokens and remembers the recent ones. Not for two threads at once.

    `seed` is the one in use, so that a run with a fresh seed can be repeated.
    """

    def __init__(self, options: SamplingOptions, tokenizer: "Tokenizer | None" = None) -> None:
        self.options = options
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._history = History(options.repeat_last_n if options.penalises else 0)
        self._matcher = _matcher(options, tokenizer)

    @property
    def is_complete(self) -> bool:
        """Whether the answer matches the constraint and no token can extend the match. Only tokens
        that end generation are sampled then."""
        return self._matcher is not None and self._matcher.is_complete

    def accept(self, token: int) -> None:
        """Go on after a token of the answer, which counts for penalties and constraint."""
        self._history.add((token,))
        if self._matcher is not None:
            self._matcher.accept(token)

    def accept_all(self, tokens: Sequence[int]) -> None:
        """Count tokens of the prompt for the penalties."""
        self._history.add(tokens)

    def sample(self, logits: Floats) -> int:
        """The next token from `logits`, float32 (V,), which stay as they are.

        Greedy costs one argmax; among equal logits the lowest id wins. Does not `accept`.
        Raises `SamplingError` when no finite logit is left, or on NaN.
        """
        options = self.options
        if options.temp <= 0 and options.typical_p >= 1 and self._matcher is None:
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
        if counts := self._history.counts:
            logits = penalise(logits, counts, options)
        return logits

    def candidates(self, logits: Floats) -> Candidates:
        """The tokens to draw from: what all filters keep, at the temperature of the options."""
        options = self.options
        logits = self.biased(logits)
        best_token(logits)  # refuses NaN, which filters would treat as a small logit
        matcher = self._matcher
        kept = Candidates.of(logits) if matcher is None else matcher.allowed(logits)
        best_token(kept.logits)  # refuses where all that the constraint allows is forbidden
        kept = top_k(kept, options.top_k)
        kept = typical_p(kept, options.typical_p)
        kept = min_p(top_p(kept, options.top_p), options.min_p)
        return temperature(kept, options.temp)

    def logprobs(self, logits: Floats, token: int, n: int | None = None) -> TokenLogprobs:
        """Log-softmax of the raw logits for `token` and the best `n` (default `n_probs`).

        A constraint changes none of them.
        """
        logs = log_softmax(logits)
        n = self.options.n_probs if n is None else n
        best = top_k(Candidates.of(logits), n).ids if n > 0 else ()
        return TokenLogprobs(
            int(token), float(logs[token]), tuple((int(i), float(logs[i])) for i in best)
        )


def _matcher(options: SamplingOptions, tokenizer: "Tokenizer | None") -> Matcher | None:
    if options.constraint is None:
        return None
    if tokenizer is None:
        raise SamplingError("sampling: a constraint needs the model's tokenizer: start(tokenizer)")
    return Matcher(options.constraint, tokenizer)
