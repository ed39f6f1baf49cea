"""Memory for the outputs of blocks of tokens, and how query heads are divided. Imports no Numba."""

import numpy as np

from ...jit.arena import aligned
from ..errors import OpsError
from .arguments import BlockOutputs

_HEADS = 4  # query heads that one pass over the keys serves, at most


def rounds_of(n_heads: int, n_kv_heads: int) -> tuple[int, int]:
    """In how many rounds the query heads of a KV head are handled, and how many in each (1 to 4).

    Raises OpsError where query heads cannot share the KV heads evenly.
    """
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise OpsError(
            f"attention: {n_heads} query heads cannot share {n_kv_heads} KV heads evenly"
        )
    group = n_heads // n_kv_heads
    rounds = -(-group // _HEADS)
    return rounds, -(-group // rounds)


def block_outputs(n_blocks: int, n_heads: int, n_kv_heads: int, padded: int) -> BlockOutputs:
    """Uninitialised memory for the outputs of so many blocks of tokens."""
    rounds, heads = rounds_of(n_heads, n_kv_heads)
    shape = n_blocks, n_kv_heads, rounds * heads
    return BlockOutputs(
        sums=aligned((*shape, padded), np.float32),
        maxima=np.empty(shape, np.float32),
        totals=np.empty(shape, np.float32),
        merged=aligned((n_heads, padded), np.float32),
    )
