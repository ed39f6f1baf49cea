"""The losses of encoders, over sampled keys that each stand for `weight` keys of the context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ALPHA, BETA = 8.0, 0.0
"""Weight of a label in `cross_entropy`: ALPHA + BETA · tokens. Over 8,192 tokens a β of 1/64, which
gives labels and others the same sum, found fewer of the best 1% (docs/learn.md)."""


def softmax_loss(logits: Tensor, positive: Tensor, allowed: Tensor, weight: Tensor) -> Tensor:
    """Mean over labels p of -ln(e^p / (e^p + Σ_n w_n e^n)), n over the keys that are no labels.

    Each label competes with all of the context, so its closest competitors count most: their order
    decides which k tokens are found. logits, positive, allowed (J, G, P, n); weight
    (J, n). Sampled softmax: Jean et al. 2015, with the inverse of the sampling rate as w.
    """
    others = allowed & ~positive
    against = logits + weight.log()[:, None, None]
    total = against.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True)
    return F.softplus(total - logits)[positive].mean()


def cross_entropy(logits: Tensor, positive: Tensor, allowed: Tensor, weight: Tensor) -> Tensor:
    """The paper's binary cross-entropy: mean over the context, labels weighing α + β · tokens."""
    n_tokens = weight.sum(-1).mean()
    each = torch.where(positive, ALPHA + BETA * n_tokens, weight[:, None, None] * allowed)
    wrong = F.binary_cross_entropy_with_logits(logits, positive.float(), reduction="none")
    return (wrong * each).sum() / each.sum()


LOSSES = {"softmax": softmax_loss, "bce": cross_entropy}
