"""How much worse a method predicts than full attention, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ops.arrays import F32, F64
from ..quality.intervals import Interval, mean, t_quantile, variance

BLOCK = 50
"""Neighbouring tokens share an interval's unit: what one of them lacks, the next ones lack, too."""
LEAST_TEXTS = 6
"""With so many texts, these are the units: their means also differ by what they are about."""


def log_softmax(logits: F32) -> F64:
    """log softmax(logits) of float32 (V,), computed in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= math.log(np.exp(wide).sum())
    return wide


@dataclass
class TextLosses:
    """What a method predicts of one text, token by token, beside full attention.

    nats: -log p of the token less what full attention has; kl: KL(full ‖ method) in nats;
    agrees: whether both have the same best token.
    """

    nats: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)

    def add(self, full: F64, method: F64, token: int) -> None:
        """Add a prediction. full, method: log probabilities (V,); token: the one that follows."""
        self.nats.append(float(full[token] - method[token]))
        self.kl.append(float(np.exp(full) @ (full - method)))
        self.agrees.append(int(full.argmax()) == int(method.argmax()))


@dataclass
class MethodLosses:
    """All that is known of a method, over all texts.

    read: share of the stored tokens that layers which choose have read, or of all that a method
    which evicts has kept; covered: share of the softmax's mass that was read; error:
    ‖o − o_full‖ / ‖o_full‖ of attention's outputs. None where the method does not choose, or was
    not probed.
    """

    method: str
    texts: list[TextLosses] = field(default_factory=list)
    read: float | None = None
    covered: float | None = None
    error: float | None = None

    @property
    def nats(self) -> float:
        """Mean loss against full attention, in nats a token."""
        return mean([text.nats for text in self.texts])

    @property
    def kl(self) -> float:
        """Mean KL(full ‖ method), in nats a token."""
        return mean([text.kl for text in self.texts])

    @property
    def agreement(self) -> float:
        """Share of the tokens whose best prediction is that of full attention."""
        return mean([text.agrees for text in self.texts])

    def interval(self) -> Interval | None:
        """95% interval of `nats`: Student's t over blocks of 50 tokens, or over texts from six on.

        None where there are fewer than two such units. Source: `variance`, for clusters.
        """
        units = [text.nats for text in self.texts]
        if len(units) < LEAST_TEXTS:
            units = [nats[i : i + BLOCK] for nats in units for i in range(0, len(nats), BLOCK)]
        if len(units) < 2:
            return None
        half = t_quantile(len(units) - 1) * math.sqrt(variance(units, self.nats))
        return self.nats - half, self.nats + half

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "method": self.method,
            "nats": self.nats,
            "ci95": self.interval(),
            "kl": self.kl,
            "agreement": self.agreement,
            "read": self.read,
            "covered": self.covered,
            "error": self.error,
            "n_tokens": sum(len(text.nats) for text in self.texts),
            "texts": [mean([text.nats]) for text in self.texts],
        }
