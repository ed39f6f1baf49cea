"""The checking wrappers: append_kv, attention and its scratch. Imports no Numba."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import Arguments, DefinedKernel, cell_of, lazy_kernel, lazy_kernels
from ...jit.threads import n_threads
from ..arrays import F32
from ..errors import OpsError
from .arguments import (
    NO_SOFTMAXES,
    NO_WINDOW,
    AppendMemory,
    CacheAddresses,
    Chunk,
    Heads,
    NewTokens,
    TokenMemory,
)
from .checks import check_floats
from .layout import SEGMENT, TileLayout, n_segments, stored_layout
from .sinks import add_sinks
from .softmax import Softmax
from .work import ROWS, Scratch, block_outputs

_SERIAL_ROWS = 64  # appending these rows costs less than waking the threads
_SERIAL_ELEMENTS = 1 << 20  # merging these elements of block outputs costs less than that


@lazy_kernel
def _append() -> DefinedKernel:
    from .append import append_kernel

    return append_kernel


@lazy_kernels
def _attend(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    from .decode.token import make_attend

    return make_attend(k_type, v_type, blocks, heads)


@lazy_kernels
def _merge(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    from .decode.token import make_merge

    return make_merge(k_type, v_type, blocks)


@lazy_kernels
def _attend_chunk(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    from .prefill.chunk import make_chunk

    return make_chunk(k_type, v_type, blocks)


@cache
def _append_memory(layout: TileLayout, threads: int) -> Arguments[AppendMemory]:
    padded = aligned((threads, layout.padded), np.float32)
    return Arguments.fixed(AppendMemory(layout=stored_layout(layout), padded=padded))


class AttentionScratch(Scratch):
    """Memory for attention of up to `max_rows` new tokens over up to `n_ctx` tokens.

    Made once; attention allocates nothing.
    """

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        max_rows: int = 512,
        n_ctx: int = SEGMENT,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, layout)
        self.max_rows, self.n_ctx = max_rows, n_ctx
        self.split = Heads(n_kv_heads, n_heads // n_kv_heads, layout.head_dim)
        self.blocks = block_outputs(n_segments(n_ctx) + 1, n_heads, n_kv_heads, layout.padded)
        self.attend = _attend(*layout.codes, self.heads)
        self.merge = _merge(*layout.output_codes)
        self.masses = np.zeros((n_heads, 2), np.float32)
        self.attend_chunk, self.chunk = _attend_chunk(*layout.codes), Arguments(Chunk)
        self.ready(n_threads())

    def _allocate(self, threads: int) -> None:
        self.token_works = self._token_works(threads)
        self.token = Arguments.fixed(TokenMemory(self.token_works, self.blocks, self.masses))
        self.chunk_works = self._chunk_works(threads)
        self.newest = np.empty((threads, ROWS), np.int64)


def _fail(name: str, value: object, expected: object) -> OpsError:
    return OpsError(f"{name} is {value}, expected {expected}")


def _check_segments(segments: NDArray[np.int64]) -> None:
    if segments.dtype != np.int64 or not segments.flags.c_contiguous:
        raise _fail("attention: segments", segments.dtype, "contiguous int64 addresses")


def append_kv(k: F32, v: F32, segments: NDArray[np.int64], layout: TileLayout, start: int) -> None:
    """Store keys and values of T tokens at positions start .. start+T-1.

    k, v float32 (T, J, E); segments int64: base address of each segment of 1,024 tokens. Rounds f16
    to nearest even, quantises q8_0 and q4_0 as ggml does, q4_0 after the Hadamard rotation. Pads
    with zeros (before rotation). Raises OpsError where shapes or room do not fit.
    """
    shape = k.shape
    if len(shape) != 3 or shape[2] != layout.head_dim:
        raise _fail("append_kv: k", shape, f"(tokens, KV heads, {layout.head_dim})")
    check_floats("append_kv: k", k, shape)
    check_floats("append_kv: v", v, shape)
    _check_segments(segments)
    if start < 0 or start + shape[0] > len(segments) * SEGMENT:
        raise OpsError(
            f"append_kv: tokens {start} to {start + shape[0] - 1} do not fit in "
            f"{len(segments)} segments of {SEGMENT}: reserve more"
        )
    parallel = shape[0] * shape[1] > _SERIAL_ROWS
    memory = _append_memory(layout, n_threads() if parallel else 1)
    new = NewTokens(k.ctypes.data, v.ctypes.data, *shape)
    cache = CacheAddresses(segments.ctypes.data, cell_of(start))
    _append(*new, *cache, memory.address, parallel=parallel)


def attention(
    q: F32,
    segments: NDArray[np.int64],
    start: int,
    out: F32,
    *,
    softmax: Softmax,
    window: int | None = None,
    scratch: AttentionScratch,
) -> None:
    """out = softmax(scale q K^T + causal mask) V, exact.

    q, out float32 (T, H, E) at positions start .. start+T-1, which are all stored already; query t
    sees tokens max(0, pos - window + 1) .. pos. A single token has a kernel that adds in another
    order than `attention_rows`. Bit-equal for any number of threads. Raises OpsError where shapes
    do not fit.
    """
    if len(q) != 1:
        attention_rows(q, segments, start, out, softmax=softmax, window=window, scratch=scratch)
        return
    s = scratch
    _check(q, segments, start, out, window, s)
    s.ready(n_threads())
    seen, split, memory = window or NO_WINDOW, s.split, s.token.address
    cache = CacheAddresses(segments.ctypes.data, cell_of(start))
    s.attend(q.ctypes.data, *split, *cache, seen, *softmax.scoring, memory)
    parallel = s.blocks.sums.size > _SERIAL_ELEMENTS
    s.merge(*split, cache.start, seen, out.ctypes.data, memory, parallel=parallel)
    if softmax.sinks is not None:
        add_sinks(out, s.masses.reshape(1, s.n_heads, 2), softmax.sinks)


def attention_rows(
    q: F32,
    segments: NDArray[np.int64],
    start: int,
    out: F32,
    *,
    softmax: Softmax,
    window: int | None = None,
    log_sums: F32 | None = None,
    scratch: AttentionScratch,
) -> None:
    """`attention` of the rows of a prompt: the bits of one do not depend on how many there are.

    log_sums float32 (T, H), if given: receives the log-sum-exp of each query's scores.
    """
    s = scratch
    _check(q, segments, start, out, window, s)
    n_tokens, sinks, softmaxes = len(q), softmax.sinks, NO_SOFTMAXES
    if n_tokens > s.max_rows:
        raise _fail("attention: tokens in a chunk", n_tokens, f"at most {s.max_rows}")
    s.ready(n_threads())
    if log_sums is not None:
        check_floats("attention: log_sums", log_sums, (n_tokens, s.n_heads))
    if log_sums is not None or sinks is not None:
        softmaxes = np.empty((n_tokens, s.n_heads, 2), np.float32)
    chunk = Chunk(
        q=q,
        segments=segments,
        out=out,
        works=s.chunk_works,
        newest=s.newest,
        softmaxes=softmaxes,
    )
    at = s.chunk.fill(chunk)
    s.attend_chunk(at, s.n_kv_heads, start, window or NO_WINDOW, *softmax.scoring)
    if sinks is not None:
        add_sinks(out, softmaxes, sinks)
    if log_sums is not None:
        np.add(softmaxes[..., 0], np.log(softmaxes[..., 1]), out=log_sums)


def _check(
    q: F32,
    segments: NDArray[np.int64],
    start: int,
    out: F32,
    window: int | None,
    s: AttentionScratch,
) -> None:
    stop = start + len(q)
    shape = len(q), s.n_heads, s.layout.head_dim
    check_floats("attention: q", q, shape)
    check_floats("attention: out", out, shape)
    _check_segments(segments)
    if start < 0 or stop > min(len(segments) * SEGMENT, s.n_ctx) or stop == start:
        raise OpsError(
            f"attention: tokens {start} to {stop - 1} lie outside {len(segments)} segments of "
            f"{SEGMENT} or the scratch's {s.n_ctx} tokens"
        )
    if window is not None and window < 1:
        raise _fail("attention: window", window, "at least 1")
