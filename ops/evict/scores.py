"""The checking wrappers of eviction by scores: attention that keys get, moving what stays."""

import numpy as np

from ...jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ...jit.threads import n_threads
from ..arrays import F32, I32, I64
from ..attention.api import AttentionScratch
from ..attention.checks import check_floats
from ..attention.layout import SEGMENT, TILE, TileLayout, stored_layout
from ..attention.softmax import Softmax
from ..errors import OpsError
from ..reference.attention import read_kv
from .arguments import ColumnSums, Moving

_MOVED_AT_ONCE = 1 << 12  # rows to move that cost less than waking the threads

_sums, _moving = Arguments(ColumnSums), Arguments(Moving)


@lazy_kernels
def _columns(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    from .columns import make_columns

    return make_columns(k_type, v_type, blocks)


@lazy_kernel
def _move() -> DefinedKernel:
    from .slots import move_kernel

    return move_kernel


def add_attention(
    q: F32,
    log_sums: F32,
    segments: I64,
    start: int,
    sums: F32,
    *,
    softmax: Softmax,
    scratch: AttentionScratch,
) -> None:
    """sums[j][key] += attention that queries pay to a key, over the query heads of KV head j.

        sum over t, h of exp(scale q[t, h] . k - log_sums[t, h]),  key <= start + t

    q float32 (T, H, E) of the tokens in slots start .. start+T-1; log_sums float32 (T, H): the
    log-sum-exp of each query's scores, as `attention_rows` gives it; sums float32 (J, room), room a
    multiple of 16. No matrix of queries by keys is made. Bit-equal for any number of threads.
    Raises OpsError where shapes do not fit. Source: NaCl, algorithm 2.
    """
    s, (n_tokens, n_heads, n) = scratch, q.shape
    check_floats("add_attention: q", q, q.shape)
    check_floats("add_attention: log_sums", log_sums, (n_tokens, n_heads))
    check_floats("add_attention: sums", sums, sums.shape)
    if (n_heads, n) != (s.n_heads, s.layout.head_dim) or not 1 <= n_tokens <= s.max_rows:
        raise OpsError(
            f"add_attention: {n_tokens} tokens of {n_heads} heads of {n}, expected 1 to "
            f"{s.max_rows} of {s.n_heads} heads of {s.layout.head_dim}"
        )
    stop, room = start + n_tokens, sums.shape[1]
    if start < 0 or stop > min(room, len(segments) * SEGMENT) or room % TILE:
        raise OpsError(
            f"add_attention: slots {start} to {stop - 1} lie outside {len(segments)} segments of "
            f"{SEGMENT} or sums of {room} slots, a multiple of {TILE}"
        )
    if len(sums) != s.n_kv_heads:
        raise OpsError(f"add_attention: sums of {len(sums)} KV heads, expected {s.n_kv_heads}")
    s.ready(n_threads())
    arrays = ColumnSums(
        q=q,
        log_sums=log_sums,
        segments=segments,
        sums=sums,
        works=s.chunk_works,
        newest=s.newest,
    )
    add, scoring = _columns(*s.layout.codes), softmax.scoring
    add(_sums.fill(arrays), s.n_kv_heads, start, *scoring)


def key_norms(
    segments: I64, layout: TileLayout, n_slots: int, n_kv_heads: int, centre: F32 | None = None
) -> F32:
    """Euclidean norms of the keys in slots 0 .. n_slots-1, as stored: float32 (J, n_slots).

    centre float32 (J, E): what was taken off the keys before they were stored.
    """
    norms = np.empty((n_kv_heads, n_slots), np.float32)
    for first in range(0, n_slots, SEGMENT):
        stop = min(first + SEGMENT, n_slots)
        keys, _ = read_kv(segments, layout, n_kv_heads, first, stop)
        if centre is not None:
            keys += centre
        norms[:, first:stop] = np.sqrt(np.einsum("tje,tje->jt", keys, keys))
    return norms


def move_slots(segments: I64, positions: I64, layout: TileLayout, sources: I32) -> None:
    """Move the tokens of slots sources[j], ascending, to the slots 0, 1, … of KV head j.

    sources int32 (J, n). K, V and positions keep their bytes; what other slots held is lost.
    Raises OpsError unless each row ascends within the room.
    """
    room = min(len(segments), len(positions)) * SEGMENT
    if sources.dtype != np.int32 or sources.ndim != 2 or not sources.flags.c_contiguous:
        raise OpsError(f"move_slots: sources {sources.dtype}{sources.shape}, expected int32 (J, n)")
    if not sources.size or sources.min() < 0 or sources.max() >= room:
        raise OpsError(f"move_slots: sources outside the {room} slots there are")
    if (np.diff(sources, axis=1) <= 0).any():
        raise OpsError("move_slots: sources do not ascend")
    moving = Moving(
        segments=segments, positions=positions, layout=stored_layout(layout), sources=sources
    )
    _move(_moving.fill(moving), parallel=sources.size > _MOVED_AT_ONCE)
