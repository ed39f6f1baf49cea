"""What methods lost on a real model that lose as much as reading sinks and window alone.

`Loss.line` is what a user reads who chooses one (`BoundAttend.notices`).
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL = "Gemma 3 270M"
"""After 16,384 tokens of three novels, 150 to 200 predicted (`kvarn perplexity --decode`)."""
ALONE = "0.11 to 0.17"
"""Nats a token that were lost there by nothing but the first 4 and the last 256 tokens."""


@dataclass(frozen=True)
class Loss:
    """Nats a token more than full attention, as in "0.14", of a method as `named`."""

    named: str
    nats: str

    def line(self, advice: str) -> str:
        """The line, which ends with what to do instead."""
        return (
            f"{self.named} lost {self.nats} nats a token on {MODEL}, no less than the first 4 "
            f"and the last 256 tokens alone ({ALONE}): {advice}"
        )


MAGICPIG = Loss("magicpig", "0.11 to 0.26")
SIMHASH = Loss("random projections (SimHash)", "0.14 to 0.15")
