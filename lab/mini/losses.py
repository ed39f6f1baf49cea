"""Losses and gradients of a batch, its rows shared out among threads."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from .model import Mini
from .texts.data import Corpus
from .texts.rows import Batch

TOKENS_PER_PART = 768
"""Tokens of whole rows that a thread works on at a time, unless one row is longer: few enough for
their logits to stay in cache and heap."""


def loss_sum(model: Mini, ids: Tensor, weights: Tensor) -> Tensor:
    """Sum over targets of weight x cross-entropy in nats; ids [B, T + 1], weights [B, T]."""
    read = weights > 0
    hidden = model.hidden(ids[:, :-1])[read] * model.config.logit_scale
    losses = F.cross_entropy(hidden @ model.token_embd.weight.T, ids[:, 1:][read], reduction="none")
    return (losses * weights[read]).sum()


def accumulate(
    model: Mini, batch: Batch, pool: ThreadPoolExecutor, bfloat16: bool = False
) -> float:
    """Sets every p.grad to the gradient of the batch's weighted mean loss, and returns that.

    Each thread takes whole parts through the network with one-threaded operators: they never wait
    for each other inside one, which on a busy machine is several times faster than threads within
    operators. Parts are summed in their order: the same bits for any number of threads.
    """
    params = list(model.parameters())
    ids, weights = torch.from_numpy(batch.ids), torch.from_numpy(batch.weights)
    weights /= weights.sum()
    n_rows = max(1, TOKENS_PER_PART // weights.shape[1])

    def one(part: tuple[Tensor, Tensor]) -> tuple[float, tuple[Tensor, ...]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = loss_sum(model, *part)
        return loss.item(), torch.autograd.grad(loss, params)

    total = 0.0
    for loss, grads in pool.map(one, zip(ids.split(n_rows), weights.split(n_rows), strict=True)):
        total += loss
        for p, g in zip(params, grads, strict=True):
            p.grad = g if p.grad is None else p.grad.add_(g)
    return total


def validate(
    model: Mini, corpus: Corpus, length: int, pool: ThreadPoolExecutor, max_rows: int | None = None
) -> float:
    """Nats per token over the validation text in rows of `length`, spread over all books."""
    ids = torch.from_numpy(corpus.ids.astype("int64"))
    rows = ids[: (len(ids) - 1) // length * length + 1].unfold(0, length + 1, length)
    if max_rows is not None:
        rows = rows[:: max(1, len(rows) // max_rows)]

    def one(part: Tensor) -> float:
        with torch.no_grad():
            return float(loss_sum(model, part, torch.ones(len(part), length)))

    parts = rows.split(max(1, TOKENS_PER_PART // length))
    return sum(pool.map(one, parts)) / rows[:, 1:].numel()
