"""How tokens choose experts. Imports no Numba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import OpsError

Scores = Literal["softmax", "softmax-of-chosen", "sigmoid"]
SCORES: tuple[Scores, ...] = get_args(Scores)
MOST_EXPERTS = 1024


@dataclass(frozen=True)
class Routing:
    """The choice of `n_used` of `n_experts` experts for a token, and the weights of their outputs.

        s       = softmax(logits) or sigmoid(logits); "softmax-of-chosen": logits
        groups  = the n_groups_used largest sums of a group's two largest s + choice_bias
        chosen  = the n_used largest s + choice_bias in these groups, the largest first
        w       = s[chosen]; "softmax-of-chosen": softmax(s[chosen])
        w       = w / max(sum(w), 2^-14) if `normalised`
        w       = w * scale * scales[chosen]

    Groups are n_experts / n_groups neighbours each. Of equal numbers the one with the lowest index
    is larger. A token whose logits or biases are not all finite takes experts 0 … n_used - 1 with
    weights NaN. Sources: `build_moe_ffn` of llama.cpp; DeepSeek-V3 (groups, choice_bias).

    Raises OpsError for counts that do not fit together.
    """

    n_experts: int
    n_used: int
    scores: Scores = "softmax"
    n_groups: int = 1
    n_groups_used: int = 1
    normalised: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_experts <= MOST_EXPERTS:
            raise _refused(f"{self.n_experts} experts", f"1 to {MOST_EXPERTS}")
        if not 1 <= self.n_used <= self.n_experts:
            raise _refused(f"{self.n_used} used experts", f"1 to {self.n_experts}")
        if self.scores not in SCORES:
            raise _refused(f"scores {self.scores!r}", f"one of {', '.join(SCORES)}")
        if self.n_groups < 1 or self.n_experts % self.n_groups:
            raise _refused(f"{self.n_groups} groups", f"a divisor of {self.n_experts} experts")
        least = -(-self.n_used // (self.n_experts // self.n_groups))
        if not least <= self.n_groups_used <= self.n_groups:
            raise _refused(f"{self.n_groups_used} used groups", f"{least} to {self.n_groups}")


def _refused(found: str, expected: str) -> OpsError:
    return OpsError(f"routing to experts: found {found}, expected {expected}")
