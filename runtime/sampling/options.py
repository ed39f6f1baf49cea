"""The options of sampling: plain values, so that a command line can be built without NumPy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType

from .constraints import Constraint
from .errors import SamplingError

_NUMBERS = "temp top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty".split()
_WHOLE = ("top_k", "repeat_last_n", "n_probs")


@dataclass(frozen=True)
class SamplingOptions:
    """The options of sampling; defaults and order are llama.cpp's.

    logit bias → penalties → top_k → typical_p → top_p → min_p → temperature → draw.
    `temp <= 0` is greedy. `top_k = 0`, `top_p = 1`, `min_p = 0`, `typical_p = 1`,
    `repeat_penalty = 1`, the other penalties 0 and `repeat_last_n = 0` turn a step off;
    `repeat_last_n = -1` penalises the whole context. `seed = None` draws a fresh one.
    `n_probs` is the number of alternatives that `SamplerState.logprobs` lists. `constraint` is what
    the answer must match: of all steps, only tokens that go on with it are seen.

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
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            self._check(name, isinstance(getattr(self, name), Real), "a number")
        for name in _WHOLE:
            self._check(name, isinstance(getattr(self, name), Integral), "a whole number")
        self._check("seed", self.seed is None or isinstance(self.seed, Integral), "a whole number")
        for name in ("temp", "presence_penalty", "frequency_penalty"):
            self._check(name, math.isfinite(getattr(self, name)), "a finite number")
        for name in ("top_p", "min_p", "typical_p"):
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "a number from 0 to 1")
        self._check("repeat_penalty", 0 < self.repeat_penalty < math.inf, "a number above 0")
        self._check("repeat_last_n", self.repeat_last_n >= -1, "-1 (all), 0 (none) or more")
        self._check("n_probs", self.n_probs >= 0, "0 or more")
        self._check("seed", self.seed is None or self.seed >= 0, "a number from 0, or none")
        self._check("constraint", isinstance(self.constraint, Constraint | None), "a Constraint")
        if not isinstance(self.logit_bias, Mapping | None):
            raise SamplingError(
                f"sampling: logit_bias is {self.logit_bias!r:.50}, expected {{token: bias, …}}"
            )
        bias = dict(self.logit_bias or {})
        for token, value in bias.items():
            if not isinstance(token, Integral) or not isinstance(value, Real):
                raise SamplingError(
                    f"sampling: logit_bias gives token {token!r:.50} the bias {value!r:.50}, "
                    "expected numbers"
                )
            if token < 0 or math.isnan(value) or value == math.inf:
                raise SamplingError(
                    f"sampling: logit_bias gives token {token} the bias {value}, "
                    "expected ids from 0 and finite numbers, or -inf to forbid a token"
                )
        object.__setattr__(self, "logit_bias", MappingProxyType(bias) if bias else None)

    def _check(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise SamplingError(
                f"sampling: {name} is {getattr(self, name)!r:.50}, expected {expected}"
            )

    @property
    def penalises(self) -> bool:
        """Whether recent tokens change any logit."""
        changes = (self.repeat_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(changes)
