"""What the kernels that evict work on. Imports no Numba.

`segments`, and columns of 4 bytes a slot, are the base addresses of their segments.
"""

from typing import NamedTuple

from ...jit.launch.arguments import (
    F32_2D,
    F32_3D,
    I32_2D,
    I32_3D,
    I64_1D,
    I64_2D,
    U32_3D,
    U64_2D,
)
from ..attention.layout import StoredLayout
from ..select.signatures.arguments import Encoder

SIGNED_AT_ONCE = 64  # slots whose keys one thread signs


class Signatures(NamedTuple):
    """Columns of signatures: bits 0 .. 31 and the others; the same one twice for up to 32 bits."""

    low: I64_1D
    high: I64_1D


class StoredKeys(NamedTuple):
    """Keys in their tiles, and the encoder for keys as stored.

    stride: weights from the encoder of one KV head to the next one's; 0: all have the same.
    """

    segments: I64_1D
    layout: StoredLayout
    encoder: Encoder
    stride: int


class Signing(NamedTuple):
    """Keys in slots, and where their signatures go."""

    keys: StoredKeys
    signatures: Signatures


class Scratch(NamedTuple):
    """Of each thread."""

    codes: U32_3D
    """Signatures of a group's queries: [word][query head]."""
    lanes: I32_3D
    """[rank, slot][lane]"""


class Protected(NamedTuple):
    """Tokens that stay: the first `sinks`, and the last `recent` before the new token."""

    sinks: int
    recent: int


class Choice(NamedTuple):
    """Queries of staged tokens and their encoder, the tokens' keys, signatures and positions of the
    slots' tokens, and the choice (`targets`)."""

    q: F32_3D
    queries: Encoder
    staged: StoredKeys
    signatures: Signatures
    positions: I64_1D
    targets: I32_2D
    scratch: Scratch


class Evictions(NamedTuple):
    """The slots that staged tokens take, and which tokens these evict: see `slots`."""

    targets: I32_2D
    evicted_by: I32_2D


class Attention(NamedTuple):
    """Queries (T, H, E) over slots and staged tokens; works, newest: as in `attention` chunks."""

    q: F32_3D
    segments: I64_1D
    staged: I64_1D
    evicted_by: I32_2D
    out: F32_3D
    works: F32_2D
    newest: I64_2D
    softmaxes: F32_3D
    """(T, H, 2): the maximum of each row's scores, and the sum of exp(score - it); or empty."""


class Writing(NamedTuple):
    """Staged tokens, and the slots that they are written to."""

    staged: I64_1D
    segments: I64_1D
    positions: I64_1D
    layout: StoredLayout
    targets: I32_2D


class Moving(NamedTuple):
    """Slots, and for each head the slots whose tokens stay, ascending: int32 (J, n)."""

    segments: I64_1D
    positions: I64_1D
    layout: StoredLayout
    sources: I32_2D


class ColumnSums(NamedTuple):
    """Queries (T, H, E), their log-sum-exp (T, H), keys, and the sums (J, slots) over rows of the
    softmax; works, newest: as in `attention` chunks."""

    q: F32_3D
    log_sums: F32_2D
    segments: I64_1D
    sums: F32_2D
    works: F32_2D
    newest: I64_2D


class Positions(NamedTuple):
    """The column of positions."""

    positions: I64_1D


class Outside(NamedTuple):
    """The column of positions, and a bit for each slot of each KV head."""

    positions: I64_1D
    bits: U64_2D
