"""The options of sampling: plain values, so that a command line can be built without NumPy."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

from .constraints import Constraint
from .errors import BadOption
from .order import ADAPTIVE, DEFAULT_ORDER, samplers_named

MOST_BREAKER_BYTES = 40
"""Of one text of `dry_sequence_breakers`; llama.cpp cuts longer ones."""


class _Rule(NamedTuple):
    """What values options may have; `kind` is named where a value is of another one."""

    names: str
    kind: type
    fits: Callable[[Any], bool]
    expected: str


_KINDS = {Real: "a number", Integral: "a whole number", bool: "True or False"}
_RULES = (
    _Rule(
        "presence_penalty frequency_penalty top_n_sigma",
        Real,
        math.isfinite,
        "a finite number",
    ),
    _Rule(
        "top_p min_p typical_p xtc_probability xtc_threshold",
        Real,
        lambda x: 0.0 <= x <= 1.0,
        "a number from 0 to 1",
    ),
    _Rule("repeat_penalty", Real, lambda x: 0 < x < math.inf, "a number above 0"),
    _Rule(
        "temp dry_multiplier dynatemp_range dynatemp_exponent mirostat_tau mirostat_eta",
        Real,
        lambda x: 0 <= x < math.inf,
        "a finite number from 0",
    ),
    _Rule("dry_base", Real, lambda x: 1 <= x < math.inf, "a finite number from 1"),
    _Rule(
        "adaptive_target",
        Real,
        lambda x: -math.inf < x <= 1,
        "a number from 0 to 1, or a negative one for none",
    ),
    _Rule("adaptive_decay", Real, lambda x: 0 <= x <= 0.99, "a number from 0 to 0.99"),
    _Rule("top_k", Integral, lambda n: n >= -1, "-1 or 0 (all), or more"),
    _Rule(
        "repeat_last_n dry_penalty_last_n",
        Integral,
        lambda n: n >= -1,
        "-1 (all), 0 (none) or more",
    ),
    _Rule("dry_allowed_length n_probs", Integral, lambda n: n >= 0, "0 or more"),
    _Rule("mirostat", Integral, lambda n: n in (0, 1, 2), "0 (off), 1 or 2"),
    _Rule("ignore_eos", bool, lambda x: True, ""),
)


@dataclass(frozen=True)
class SamplingOptions:
    """The options of sampling; names, defaults, formulas and order are llama.cpp's.

    logit bias → constraint → penalties → dry → top_n_sigma → top_k → typical_p → top_p → min_p →
    xtc → temperature → draw. `samplers` names other steps in another order, as a sequence or as
    "top_k;temperature". With `mirostat`, only the bias, the constraint and the temperature count.

    `temp = 0` is greedy; with a `dynatemp_range` r, temperatures are from temp − r to temp + r, by
    the entropy. `top_k = 0` (or -1), `top_p = 1`, `min_p = 0`, `typical_p = 1`, `top_n_sigma <= 0`,
    `xtc_probability = 0`, `repeat_penalty = 1`, `dry_multiplier = 0`, the other penalties 0 and a
    `…_last_n` of 0 turn a step off; a `…_last_n` of -1 looks at the whole context.
    `adaptive_target` counts where `samplers` name `adaptive_p`, which draws. `ignore_eos` forbids
    the tokens that end generation. `seed = None` draws a fresh one. `n_probs` is the number of
    alternatives that `SamplerState.logprobs` lists. `constraint` is what the answer must match: of
    all steps, only tokens that go on with it are seen.

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
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    samplers: str | Sequence[str] = DEFAULT_ORDER
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for names, kind, fits, expected in _RULES:
            for name in names.split():
                value = getattr(self, name)
                is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
                self._check(name, is_kind, _KINDS[kind])
                self._check(name, fits(value), expected)
        is_seed = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        self._check("seed", self.seed is None or is_seed, "a whole number")
        self._check("seed", self.seed is None or self.seed >= 0, "a number from 0, or none")
        self._check("constraint", isinstance(self.constraint, Constraint | None), "a Constraint")
        bias = self._checked_bias()
        object.__setattr__(self, "logit_bias", MappingProxyType(bias) if bias else None)
        is_text = isinstance(self.samplers, str)
        self._check("samplers", is_text or _are_texts(self.samplers), "names of samplers")
        object.__setattr__(self, "samplers", samplers_named(self.samplers))
        breakers = self.dry_sequence_breakers
        self._check("dry_sequence_breakers", _are_texts(breakers), "a list of texts")
        for text in breakers:
            if not 0 < len(text.encode("utf-8", "surrogatepass")) <= MOST_BREAKER_BYTES:
                raise BadOption(
                    f"sampling: dry_sequence_breakers have {text!r:.50}, expected texts of 1 to "
                    f"{MOST_BREAKER_BYTES} bytes"
                )
        object.__setattr__(self, "dry_sequence_breakers", tuple(breakers))

    def _checked_bias(self) -> dict[int, float]:
        if not isinstance(self.logit_bias, Mapping | None):
            raise BadOption(
                f"sampling: logit_bias is {self.logit_bias!r:.50}, expected {{token: bias, …}}"
            )
        bias = dict(self.logit_bias or {})
        for token, value in bias.items():
            if not isinstance(token, Integral) or not isinstance(value, Real):
                raise BadOption(
                    f"sampling: logit_bias gives token {token!r:.50} the bias {value!r:.50}, "
                    "expected numbers"
                )
            if token < 0 or math.isnan(value) or value == math.inf:
                raise BadOption(
                    f"sampling: logit_bias gives token {token} the bias {value}, "
                    "expected ids from 0 and finite numbers, or -inf to forbid a token"
                )
        return bias

    def _check(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise BadOption(f"sampling: {name} is {getattr(self, name)!r:.50}, expected {expected}")

    @property
    def penalises(self) -> bool:
        """Whether recent tokens change any logit."""
        changes = (self.repeat_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(changes) and self._uses("penalties")

    @property
    def forbids_repetition(self) -> bool:
        """Whether tokens that would repeat a sequence get smaller logits."""
        return bool(self.dry_multiplier and self.dry_penalty_last_n) and self._uses("dry")

    @property
    def needs_tokenizer(self) -> bool:
        """Whether `start` needs the model's tokenizer."""
        breaks = self.forbids_repetition and bool(self.dry_sequence_breakers)
        return self.constraint is not None or self.ignore_eos or breaks

    def _uses(self, sampler: str) -> bool:
        return not self.mirostat and sampler in self.samplers

    def check_together(self) -> None:
        """Raises `SamplingError` for an option that has no effect beside the others."""
        if self.adaptive_target >= 0 and not self._uses(ADAPTIVE):
            reason = "mirostat draws" if self.mirostat else f"samplers do not name {ADAPTIVE}"
            raise BadOption(
                f"sampling: adaptive_target is {self.adaptive_target}, but {reason}: "
                f"add {ADAPTIVE} to samplers and omit mirostat, or omit adaptive_target"
            )


def bias_of_json(value: Any) -> Any:
    """A `logit_bias` of JSON, which spells ids of tokens as text; other values as they are."""
    if not isinstance(value, dict):
        return value
    is_id = re.compile("[0-9]{1,12}").fullmatch
    return {int(key) if is_id(str(key)) else key: bias for key, bias in value.items()}


def _are_texts(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and all(isinstance(text, str) for text in value)
