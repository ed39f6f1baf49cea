"""What contexts of such models are compared with, and the tokens that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kvarn

N, N_CTX = 2100, 2400


def after(model: kvarn.Model, ids: list[int], generated: list[int] = []) -> np.ndarray:  # noqa: B006
    """The logits of a context that has read all at once, then generated tokens one by one."""
    with model.context(N_CTX) as context:
        logits = context.prefill(ids)
        for token in generated:
            logits = context.decode(token)
        return logits.copy()


@contextmanager
def counted(model: kvarn.Model) -> Iterator[list[int]]:
    """The numbers of tokens that passes read in the block."""
    known, counts = model.transformer.forward, []

    def forward(ids: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(ids))
        return known(ids, *args, **options)

    model.transformer.forward = forward  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        del model.transformer.forward
