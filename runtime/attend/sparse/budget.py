"""How many tokens a sparse method may read: a share of the context or a number, per layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base import AttendError

UNITS = ("kv-head", "query-head")
SCHEDULES = ("uniform", "linear")


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens to choose beside sinks and window: `share` of those stored, or `number` of them."""

    share: float = 0.0
    number: int = 0

    @staticmethod
    def parse(text: str | int | float) -> Budget:
        """ "1%", "0.5%" → a share; 2048 or "2048" → a number. Raises `AttendError`."""
        words = str(text).strip()
        try:
            if words.endswith("%"):
                share = float(words[:-1]) / 100
                if 0 < share <= 1:
                    return Budget(share=share)
            elif (number := int(words)) >= 1:
                return Budget(number=number)
        except ValueError:
            pass  # told like a value out of range
        raise AttendError(f"budget is {text!r}, expected a share as 1% or a number of tokens")

    def tokens(self, stored: int) -> int:
        """Tokens allowed out of `stored`."""
        return self.number or math.ceil(self.share * stored)


def layer_weights(n_layers: int, schedule: str) -> list[float]:
    """Factors on the budget of each layer, of mean 1: all 1, or 2 (i + 1) / (n + 1), rising."""
    if schedule == "linear":
        return [2 * (i + 1) / (n_layers + 1) for i in range(n_layers)]
    return [1.0] * n_layers
