"""Perplexity of a model on a text, as llama.cpp's tool defines it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..ops.arrays import F32, F64
from ..system.errors import KvarnError
from ..system.spelling import spelt

if TYPE_CHECKING:
    from .context import Context
    from .model import Model
    from .prefill import Prefill
    from .store import Store


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean −log p(token), with the standard error of that estimate."""

    value: float
    error: float
    n_tokens: int
    n_chunks: int
    all_chunks: int


def perplexity(
    model: Model,
    text: str | bytes,
    n_ctx: int,
    max_chunks: int | None,
    store: Store,
    prefill: Prefill | None = None,
) -> Iterator[Perplexity]:
    """The running estimate after each piece of `n_ctx` tokens, as it is read.

    The text is cut into pieces of `n_ctx` tokens. Each is read from an empty context (its first
    token replaced by BOS if the model wants one), and of its tokens n_ctx/2 + 1 … n_ctx − 1
    each contributes −log p(token | piece so far): the first half only gives them context. prefill:
    how each piece is read (default: exactly).

    Raises `KvarnError` when `n_ctx` is too small or the text has fewer than two pieces' tokens.
    """
    if n_ctx < 4:
        raise KvarnError(f"perplexity needs pieces of at least 4 tokens, not {n_ctx}")
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text, bos=tokenizer.add_bos)
    if len(ids) < 2 * n_ctx:
        raise KvarnError(
            f"the text has {len(ids):,} tokens; perplexity over pieces of {n_ctx:,} needs at least "
            f"{2 * n_ctx:,}: use a longer text or a smaller {spelt('ctx')}"
        )
    chunks = min(len(ids) // n_ctx, max_chunks or len(ids))
    return _estimates(model, ids, chunks, model.context(n_ctx, store=store, prefill=prefill))


def _estimates(
    model: Model, ids: Sequence[int], chunks: int, context: Context
) -> Iterator[Perplexity]:
    tokenizer, n_ctx = model.tokenizer, context.n_ctx
    first = n_ctx // 2
    if context.where:
        model.tell(context.where)
    total = squares = 0.0
    count = 0
    for chunk in range(chunks):
        piece = ids[chunk * n_ctx : (chunk + 1) * n_ctx]
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            piece = [tokenizer.bos_id, *piece[1:]]
        context.truncate(0)
        losses = losses_of(context.read_all_logits(piece, first), piece[first + 1 :])
        total += float(losses.sum())
        squares += float(np.square(losses).sum())
        count += len(losses)
        mean = total / count
        error = math.sqrt(max(0.0, squares / count - mean * mean) / max(1, count - 1))
        value = math.exp(mean)
        yield Perplexity(value, value * error, count, chunk + 1, chunks)


def losses_of(logits: Iterator[F32], targets: Sequence[int]) -> F64:
    """−log p of each target; the last row of logits has none and is ignored."""
    out, done = np.empty(len(targets), np.float64), 0
    for rows in logits:
        wanted = targets[done : done + len(rows)]
        wide = rows[: len(wanted)].astype(np.float64)
        top = wide.max(axis=1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(wide - top).sum(axis=1))
        out[done : done + len(wanted)] = log_sum - wide[np.arange(len(wanted)), wanted]
        done += len(wanted)
    return out
