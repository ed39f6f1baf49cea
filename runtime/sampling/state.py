"""The chain of one generation, in llama.cpp's order."""

import secrets
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile

import numpy as np

from ..tokenizer import Tokenizer
from .candidates import Candidates, Floats, best_token, log_softmax, softmax
from .constraints.matcher import Matcher
from .drawing import steering_of
from .dry import Repetitions
from .errors import SamplingError
from .filters import dynamic_temperature, min_p, top_k, top_n_sigma, top_p, typical_p, xtc
from .options import SamplingOptions
from .penalties import History, add_bias, checked_ids, penalise

_Step = Callable[[Candidates], Candidates]
_PENALTIES = ("penalties", "dry")
_KEEP_BEST = {"top_n_sigma", "top_k", "top_p", "min_p", "temperature"}
"""The steps that no best token falls victim to."""


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
        if options.needs_tokenizer and tokenizer is None:
            name = "a constraint" if options.constraint else "this sampler"
            raise SamplingError(f"sampling: {name} needs the model's tokenizer: start(tokenizer)")
        self.options = options
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._bias = dict(options.logit_bias or {})
        if options.ignore_eos and tokenizer is not None:
            self._bias |= dict.fromkeys(tokenizer.eog_ids, -np.inf)
        self._history = History(options.repeat_last_n if options.penalises else 0)
        self._repetitions = Repetitions(options, tokenizer) if options.forbids_repetition else None
        self._matcher = _matcher(options, tokenizer)
        self._steering = steering_of(options)
        self._steps = self._chain()
        self._is_greedy = options.temp <= 0 and self._is_best_drawn()

    @property
    def is_complete(self) -> bool:
        """Whether the answer matches the constraint and no token can extend the match. Only tokens
        that end generation are sampled then."""
        return self._matcher is not None and self._matcher.is_complete

    def fork(self) -> "SamplerState":
        """A copy that draws what this one would draw, with the same random numbers, and goes on by
        itself."""
        other = copy(self)
        other._random, other._steering = deepcopy(self._random), copy(self._steering)
        other._history = self._history.copy()
        other._repetitions = self._repetitions and self._repetitions.copy()
        other._matcher = self._matcher and self._matcher.copy()
        other._steps = other._chain()
        return other

    def accept(self, token: int) -> None:
        """Go on after a token of the answer, which counts for penalties and constraint."""
        self.accept_all((token,))
        if self._steering is not None:
            self._steering.accept(token)
        if self._matcher is not None:
            self._matcher.accept(token)

    def accept_all(self, tokens: Sequence[int]) -> None:
        """Count tokens of the prompt for the penalties."""
        self._history.add(tokens)
        if self._repetitions is not None:
            self._repetitions.add(tokens)

    def sample(self, logits: Floats) -> int:
        """The next token from `logits`, float32 (V,), which stay as they are.

        Greedy costs one argmax; among equal logits the lowest id wins. Does not `accept`.
        Raises `SamplingError` when no finite logit is left, or on NaN.
        """
        if self._is_greedy:
            # No filter drops the best token, so there is nothing to filter.
            kept = Candidates.of(self._biased(logits))
            for name, step in self._steps:
                kept = step(kept) if name in _PENALTIES else kept
            return best_token(kept.logits)
        kept = self.candidates(logits)
        probs = softmax(kept.logits)
        sums = np.cumsum(probs, dtype=np.float64)
        drawn = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        index = min(int(drawn), len(kept) - 1)
        token = int(kept.ids[index])
        if self._steering is not None:
            self._steering.record_draw(index, token, float(probs[index]))
        return token

    def candidates(self, logits: Floats) -> Candidates:
        """The tokens to draw from: what all steps keep, with the logits that they give."""
        logits = self._biased(logits)
        best_token(logits)  # refuses NaN, which filters would treat as a small logit
        matcher = self._matcher
        kept = Candidates.of(logits) if matcher is None else matcher.allowed(logits)
        best_token(kept.logits)  # refuses where all that the constraint allows is forbidden
        for _, step in self._steps:
            kept = step(kept)
        return kept if self._steering is None else self._steering.steer(kept, logits.size)

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

    def _biased(self, logits: Floats) -> Floats:
        """Logits with their biases: the same array when there are none."""
        checked_ids(self._history.counts, logits.size, "penalties")
        return add_bias(logits, self._bias) if self._bias else logits

    def _chain(self) -> tuple[tuple[str, _Step], ...]:
        """The steps that change anything, in their order."""
        options, repetitions = self.options, self._repetitions
        spread, exponent = options.dynatemp_range, options.dynatemp_exponent
        if options.mirostat:
            spread, exponent = 0.0, 1.0
        steps: dict[str, tuple[bool, _Step]] = {
            "penalties": (options.penalises, self._penalise),
            "top_n_sigma": (options.top_n_sigma > 0, partial(top_n_sigma, n=options.top_n_sigma)),
            "top_k": (options.top_k > 0, partial(top_k, k=options.top_k)),
            "typ_p": (options.typical_p < 1, partial(typical_p, p=options.typical_p)),
            "top_p": (options.top_p < 1, partial(top_p, p=options.top_p)),
            "min_p": (options.min_p > 0, partial(min_p, p=options.min_p)),
            "xtc": (options.xtc_probability > 0, self._xtc),
        }
        warm = partial(dynamic_temperature, temp=options.temp, spread=spread, exponent=exponent)
        steps["temperature"] = (True, warm)
        if repetitions is not None:
            steps["dry"] = (True, repetitions.penalise)
        names = ("temperature",) if options.mirostat else options.samplers
        return tuple((name, steps[name][1]) for name in names if name in steps and steps[name][0])

    def _is_best_drawn(self) -> bool:
        """Whether a temperature of 0 draws the best token after the penalties."""
        names = [name for name, _ in self._steps]
        after = set(dropwhile(lambda name: name in _PENALTIES, names))
        is_free = self._matcher is None and self._steering is None
        return is_free and not self.options.dynatemp_range and "temperature" in after <= _KEEP_BEST

    def _penalise(self, candidates: Candidates) -> Candidates:
        counts = self._history.counts
        return penalise(candidates, counts, self.options) if counts else candidates

    def _xtc(self, candidates: Candidates) -> Candidates:
        options = self.options
        return xtc(candidates, options.xtc_probability, options.xtc_threshold, self._random.random)


def _matcher(options: SamplingOptions, tokenizer: "Tokenizer | None") -> Matcher | None:
    if options.constraint is None or tokenizer is None:
        return None
    return Matcher(options.constraint, tokenizer)
