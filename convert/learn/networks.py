"""The encoders as torch modules, one small network a head, all heads of a layer at once; and their
losses, over sampled keys that each stand for `weight` keys of the context.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...runtime.attend.encoders.sidecar import widths_of


class HeadNetworks(nn.Module):
    """The encoders of n heads: y = x W + b, or with hidden units h
    y = W_3 silu(W_2 silu(W_1 x + b_1) + b_2) + b_3, widths E, h, h, bits.
    """

    def __init__(self, n: int, width: int, hidden: int, bits: int) -> None:
        super().__init__()
        widths = widths_of(width, hidden, bits)
        self.weights = nn.ParameterList(
            0.1 * torch.randn(n, a, b) / math.sqrt(a) for a, b in pairwise(widths)
        )
        self.biases = nn.ParameterList(torch.zeros(n, b) for b in widths[1:])

    def begin(self, maps: Tensor, bias: Tensor) -> None:
        """Become y = x · maps + bias: maps (n, E, bits), bias (n, bits).

        With hidden units as silu(z) - silu(-z) = z: W_1 = [P, -P], a W_2 that passes the pairs on
        and W_3 = [R, -R] give y = x P R, P orthonormal directions that span the maps, at most
        h / 2 of them. The remaining units keep their small weights.
        """
        self.biases[-1].data.copy_(bias)
        if len(self.weights) == 1:
            self.weights[0].data.copy_(maps)
            return
        first, second, third = (w.data for w in self.weights)
        inner = torch.linalg.qr(maps)[0][:, :, : first.shape[2] // 2]
        pairs, outer = inner.shape[2], inner.mT @ maps
        first[:, :, : 2 * pairs] = torch.cat([inner, -inner], 2)
        passed = torch.eye(pairs)
        second[:, :, : 2 * pairs] = 0
        second[:, : 2 * pairs, : 2 * pairs] = torch.cat(
            [torch.cat([passed, -passed], 1), torch.cat([-passed, passed], 1)]
        )
        third[:] = 0
        third[:, : 2 * pairs] = torch.cat([outer, -outer], 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, T, E), a row of vectors for each head, to (n, T, bits)."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias[:, None], F.silu(x) if i else x, weight)
        return x

    def normalise(self, x: Tensor) -> None:
        """Scale the outputs so that over x (n, T, E) each head's have a root mean square of 1."""
        size = self(x).detach().square().mean((1, 2)).sqrt().clamp_min(1e-6)
        self.weights[-1].data /= size[:, None, None]
        self.biases[-1].data /= size[:, None]


class StraightSign(torch.autograd.Function):
    """(sign(y) + tanh(y)) / 2, whose gradient is tanh's.

    The forward pass includes half of the effect of rounding to bits, so that training accounts for
    it. Using the whole sign was as good, tanh alone clearly worse (docs/guides/learn.md).
    """

    @staticmethod
    def forward(ctx, y: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
        soft = torch.tanh(y)
        ctx.save_for_backward(soft)
        return 0.5 * (soft + torch.sign(y))

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
        (soft,) = ctx.saved_tensors
        return grad * (1 - soft.square())


class LayerStudent(nn.Module):
    """The encoders of one layer with the scale s and the offset c of each query head's logits.

    logit(q, k) = s · ⟨b(φ_q(q)), b(φ_k(k))⟩ / √bits + c, b soft or straight-through bits.
    soft: the paper's, b = tanh and s / √bits = 1, c = 0 throughout.
    """

    def __init__(self, heads: tuple[int, int], width: int, hidden: int, bits: int) -> None:
        """heads: query heads, KV heads."""
        super().__init__()
        n_heads, n_kv_heads = heads
        self.q = HeadNetworks(n_heads, width, hidden, bits)
        self.k = HeadNetworks(n_kv_heads, width, hidden, bits)
        self.group = n_heads // n_kv_heads
        self.log_s = nn.Parameter(torch.full((n_heads,), math.log(2.0)))
        self.c = nn.Parameter(torch.full((n_heads,), -3.0))

    def forward(self, q: Tensor, keys: Tensor, soft: bool) -> Tensor:
        """Logits (J, G, P, n) of q (H, P, E) with keys (J, n, E)."""
        bits = torch.tanh if soft else StraightSign.apply
        a, b = bits(self.q(q)), bits(self.k(keys))
        a = a.unflatten(0, (-1, self.group))
        products: Tensor = a @ b[:, None].mT
        if soft:
            return products
        shape = a.shape[0], self.group, 1, 1
        scale = self.log_s.exp().view(shape) / math.sqrt(b.shape[-1])
        return products * scale + self.c.view(shape)


ALPHA, BETA = 20.0, 0.0
"""Weight of a label in `cross_entropy`: α + β · tokens, equation 4 of the paper, which leaves both
open; these are the defaults of its authors' train_hashattention.py (xAlg-ai/HashAttention-1.0)."""


def softmax_loss(logits: Tensor, positive: Tensor, allowed: Tensor, weight: Tensor) -> Tensor:
    """Mean over labels p of -ln(e^p / (e^p + Σ_n w_n e^n)), n over the keys that are no labels.

    Each label competes with all of the context, so its closest competitors count most: their order
    decides which k tokens a search finds. logits, positive, allowed (J, G, P, n); weight
    (J, n). Sampled softmax: Jean et al. 2015, with the inverse of the sampling rate as w.
    """
    others = allowed & ~positive
    weighted = logits + weight.log()[:, None, None]
    total = weighted.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True)
    return F.softplus(total - logits)[positive].mean()


def cross_entropy(logits: Tensor, positive: Tensor, allowed: Tensor, weight: Tensor) -> Tensor:
    """The paper's binary cross-entropy: mean over the context, labels weighing α + β · tokens."""
    n_tokens = weight.sum(-1).mean()
    each = torch.where(positive, ALPHA + BETA * n_tokens, weight[:, None, None] * allowed)
    wrong = F.binary_cross_entropy_with_logits(logits, positive.float(), reduction="none")
    return (wrong * each).sum() / each.sum()


LOSSES = {"softmax": softmax_loss, "bce": cross_entropy}
