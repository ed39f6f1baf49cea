"""The arguments of the kernels of attention. Imports no Numba."""

from typing import NamedTuple

import numpy as np

from ...jit.launch.arguments import (
    F32_2D,
    F32_3D,
    F32_4D,
    I64_1D,
    I64_2D,
    U8_2D,
    U32_2D,
    U32_3D,
)
from .layout import StoredLayout

NO_WINDOW = 1 << 60
"""A window that hides nothing."""
NO_SOFTMAXES = np.empty((0, 0, 2), np.float32)
"""For `softmaxes` that nobody wants."""


class NewTokens(NamedTuple):
    """Keys and values to append: addresses of float32 (n_tokens, n_kv_heads, head_dim)."""

    k: int
    v: int
    n_tokens: int
    n_kv_heads: int
    head_dim: int


class CacheAddresses(NamedTuple):
    """Addresses by which a kernel reads the cache, as their contents change between two runs of a
    recorded launch."""

    segments: int
    """Of int64: the base address of each segment."""
    start: int
    """Of int64: the position of the first new token."""


class AppendMemory(NamedTuple):
    """The layout of tiles, and scratch of each thread."""

    layout: StoredLayout
    padded: F32_2D
    """A row with its padding."""


class Heads(NamedTuple):
    """Heads of one token's queries, float32 (n_kv_heads * group, head_dim)."""

    n_kv_heads: int
    group: int
    """Query heads that share a KV head."""
    head_dim: int


class Scoring(NamedTuple):
    """Score of a key = softcap tanh(s / softcap), or s where softcap is 0; s = scale q . k."""

    scale: float
    softcap: float


class BlockOutputs(NamedTuple):
    """Outputs of attention over each block of tokens, before they are merged.

    A KV head's `rows` are its query heads, rounded up to whole rounds.
    """

    sums: F32_4D
    """[block][KV head][row][padded]: of exp(score - maximum) times value."""
    maxima: F32_3D
    """[block][KV head][row]: nearly the maximum of the scores, subtracted from them."""
    totals: F32_3D
    """[block][KV head][row]: of exp(score - maximum)."""
    merged: F32_2D
    """[query head][padded]: rows before their padding is cut off."""


class TokenMemory(NamedTuple):
    """Scratch of attention of one token to all others."""

    works: U8_2D
    """Of each thread: `work.token_work_bytes`."""
    blocks: BlockOutputs
    masses: F32_2D
    """[query head][2]: m, subtracted from the scores, and the total of exp(score - m)."""


class GatheredTokens(NamedTuple):
    """One token's query heads (1, H, E), the tokens that each KV head lists, and the output."""

    q: F32_3D
    lists: U32_2D
    """[KV head][room], of which the first counts[j] are tokens."""
    counts: I64_1D
    segments: I64_1D
    log_weights: F32_2D
    """[query head][room], or empty."""
    out: F32_3D


class GatheredMemory(NamedTuple):
    """Scratch of attention of one token to lists of others."""

    works: U8_2D
    rooms: U8_2D
    """Of each thread: `work.gathered_work_bytes`."""
    blocks: BlockOutputs
    masses: F32_2D
    """[query head][2]: m, subtracted from the scores, and the total of exp(score - m)."""


class ReadAhead(NamedTuple):
    """Lists of tokens whose tiles are requested, and the number of requests."""

    lists: U32_2D
    counts: I64_1D
    segments: I64_1D
    pages: U8_2D
    """[segment][page]: 1 for a page that is in memory or requested; empty: unknown."""
    requests: I64_1D


class MappedTiles(NamedTuple):
    """The first segments, which lie in mapped files."""

    n_segments: int
    head_bytes: int
    tile_bytes: int
    page_bits: int
    """Pages have 2^page_bits bytes."""
    gap_bytes: int
    """Tiles with a smaller gap share a request, which is cheaper than two."""


class Chunk(NamedTuple):
    """Query heads of a chunk of tokens (T, H, E), their output, and scratch of each thread."""

    q: F32_3D
    segments: I64_1D
    out: F32_3D
    works: F32_2D
    """`work.chunk_work_floats`"""
    newest: I64_2D
    """Position of the last row of each panel."""
    softmaxes: F32_3D
    """(T, H, 2): the maximum of each row's scores, and the sum of exp(score - it); or empty."""


class ListedRows(NamedTuple):
    """Query heads of rows of tokens (T, H, E), the tokens that each row lists, and their output."""

    q: F32_3D
    lists: U32_3D
    """[row][KV head][room], of which the first counts[row][j] are tokens."""
    counts: I64_2D
    segments: I64_1D
    out: F32_3D
    softmaxes: F32_3D
    """(T, H, 2): as of `Chunk`; or empty."""


class ListedMemory(NamedTuple):
    """Scratch of each thread: that of a chunk, that of a list, and a list's outputs."""

    works: F32_2D
    newest: I64_2D
    list_works: U8_2D
    rooms: U8_2D
    sums: F32_3D
    """[query head][padded]"""
    maxima: F32_2D
    totals: F32_2D


class Dense(NamedTuple):
    """The tokens that every row attends to: 0 .. sinks-1, and `first` .. the row's position."""

    sinks: int
    first: int
    start: int
    """Position of row 0."""
