"""The checking wrapper of attention to lists of tokens, and its scratch."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, launcher, lazy_kernels, recording
from ....jit.threads import n_threads
from ...arrays import F32
from ...errors import OpsError
from ..arguments import GatheredMemory, GatheredTokens
from ..checks import check_floats
from ..layout import TileLayout, n_segments
from ..sinks import add_sinks
from ..softmax import Softmax
from ..work import Scratch, block_outputs, gathered_work_bytes

# Elements of K that one thread gathers before the others wake.
SERIAL_ELEMENTS = 32_768
U32 = NDArray[np.uint32]


@lazy_kernels
def _attend(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    from .gathered_kernels import make_gathered

    return make_gathered(k_type, v_type, blocks, heads)


@lazy_kernels
def _merge(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    from .gathered_kernels import make_merge

    return make_merge(k_type, v_type, blocks)


class GatheredScratch(Scratch):
    """Memory for attention to lists of up to `room` tokens; nothing is allocated later.

    masses float32 (H, 2), of the last call: m, subtracted from each head's scores, and the total of
    exp(score - m). With these, its output can be merged with attention to other tokens.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int) -> None:
        super().__init__(n_heads, n_kv_heads, layout)
        self.room = room
        self.blocks = block_outputs(n_segments(room), n_heads, n_kv_heads, layout.padded)
        self.attend = _attend(*layout.codes, self.heads)
        self.merge = _merge(*layout.output_codes)
        self.tokens = Arguments(GatheredTokens)
        self.masses = np.zeros((n_heads, 2), np.float32)

    def _allocate(self, threads: int) -> None:
        memory = GatheredMemory(
            works=self._token_works(threads),
            rooms=aligned((threads, gathered_work_bytes(self.layout.tile_bytes)), np.uint8),
            blocks=self.blocks,
            masses=self.masses,
        )
        self.memory = Arguments.fixed(memory)


NO_WEIGHTS = np.empty((0, 0), np.float32)


def gathered_attention(
    q: F32,
    lists: U32,
    counts: NDArray[np.int64],
    segments: NDArray[np.int64],
    out: F32,
    *,
    softmax: Softmax,
    log_weights: F32 = NO_WEIGHTS,
    scratch: GatheredScratch,
) -> None:
    """out[h] = softmax over listed tokens i of (scale q[h] . k_i + log_weights[h][i]) V.

    q, out float32 (1, H, E); lists uint32 (J, room): the tokens of each KV head, ascending for
    speed, of which the first counts[j] >= 1 are read; log_weights float32 (H, room), or empty.
    Bit-equal for any number of threads. Raises OpsError where shapes do not fit. The caller makes
    sure that listed tokens are stored, and in a recorded call that each list has 1 to room tokens.
    """
    s = scratch
    shape = 1, s.n_heads, s.layout.head_dim
    for name, x in (("q", q), ("out", out)):
        check_floats(f"gathered attention: {name}", x, shape)
    heads, room = lists.shape
    if heads != s.n_kv_heads or lists.dtype != np.uint32 or counts.shape != (heads,):
        raise OpsError(
            f"gathered attention: lists are {lists.dtype} {lists.shape} with {counts.shape} "
            f"lengths, expected uint32 ({s.n_kv_heads}, room)"
        )
    room = min(s.room, room)
    if recording() or launcher.runs_nothing():  # the lists are not written yet
        n_listed = heads * room
    else:
        least, most, n_listed = counts.min(), counts.max(), int(counts.sum())
        if not 1 <= least <= most <= room:
            raise OpsError(
                f"gathered attention: lists of {least} to {most} tokens, expected 1 to {room}"
            )
    if log_weights.size and log_weights.shape != (s.n_heads, lists.shape[1]):
        raise OpsError(
            f"gathered attention: log weights are {log_weights.shape}, expected "
            f"{(s.n_heads, lists.shape[1])}"
        )
    few = n_listed * s.layout.padded <= SERIAL_ELEMENTS
    s.ready(n_threads())
    given = GatheredTokens(
        q=q, lists=lists, counts=counts, segments=segments, log_weights=log_weights, out=out
    )
    tokens, memory = s.tokens.fill(given), s.memory.address
    s.attend(tokens, memory, *softmax.scoring, parallel=not few)
    s.merge(tokens, memory, parallel=not few)
    if softmax.sinks is not None:
        add_sinks(out, s.masses.reshape(1, s.n_heads, 2), softmax.sinks)
