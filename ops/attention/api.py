"""The checking wrappers: append_kv, attention and its scratch. Imports no Numba."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import Arguments, DefinedKernel, cell_of, lazy_kernel, lazy_kernels
from ...jit.threads import n_threads
from ..errors import OpsError
from .arguments import (
    NO_SOFTMAXES,
    NO_WINDOW,
    AppendMemory,
    CacheAddresses,
    Chunk,
    Heads,
    NewTokens,
    Scoring,
    TokenMemory,
)
from .checks import check_floats
from .layout import SEGMENT, TileLayout, n_segments, stored_layout
from .sinks import add_sinks
from .work import ROWS, Scratch, block_outputs

F32 = NDArray[np.float32]
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
def _merge(v_type: int, blocks: int) -> DefinedKernel:
    from .decode.token import make_merge

    return make_merge(v_type, blocks)


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
    layout: TileLayout,
    n_kv_heads: int,
    start: int,
    out: F32,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    scratch: AttentionScratch,
    sink_logits: F32 | None = None,
    log_sums: F32 | None = None,
    prompt: bool = False,
) -> None:
    """out = softmax(cap(scale q K^T) + causal mask) V, exact.

    q, out float32 (T, H, E) at positions start .. start+T-1, which are all stored already; query t
    sees tokens max(0, pos - window + 1) .. pos. cap(s) = softcap tanh(s / softcap), unless softcap
    is 0. sink_logits float32 (H,), if given: a score of each head that belongs to no token
    (`add_sinks`). log_sums float32 (T, H), if given: receives the log-sum-exp of each query's
    scores. A single token has a kernel that adds in another order, unless it belongs to a prompt
    or log_sums is given. Bit-equal for any number of threads. Raises OpsError where shapes do not
    fit.
    """
    n_tokens, n_heads, n = shape = q.shape
    check_floats("attention: q", q, shape)
    check_floats("attention: out", out, shape)
    if (
        n_heads != scratch.n_heads
        or n_kv_heads != scratch.n_kv_heads
        or (layout is not scratch.layout and layout != scratch.layout)
        or n != layout.head_dim
    ):
        raise OpsError(
            f"attention: {n_heads} query and {n_kv_heads} KV heads of {n} over {layout}; scratch "
            f"was made for {scratch.n_heads} and {scratch.n_kv_heads} over {scratch.layout}"
        )
    _check_segments(segments)
    stop = start + n_tokens
    if start < 0 or stop > min(len(segments) * SEGMENT, scratch.n_ctx) or n_tokens < 1:
        raise OpsError(
            f"attention: tokens {start} to {stop - 1} lie outside {len(segments)} segments of "
            f"{SEGMENT} or the scratch's {scratch.n_ctx} tokens"
        )
    if window is not None and window < 1:
        raise _fail("attention: window", window, "at least 1")
    s, seen, scoring = scratch, window or NO_WINDOW, Scoring(scale, softcap)
    if n_tokens == 1 and log_sums is None and not prompt:
        _attend_token(q, segments, start, seen, out, scoring, s)
        if sink_logits is not None:
            add_sinks(out, s.masses.reshape(1, n_heads, 2), sink_logits)
        return
    if n_tokens > s.max_rows:
        raise _fail("attention: tokens in a chunk", n_tokens, f"at most {s.max_rows}")
    s.ready(n_threads())
    softmaxes = NO_SOFTMAXES
    if log_sums is not None:
        check_floats("attention: log_sums", log_sums, (n_tokens, n_heads))
    if log_sums is not None or sink_logits is not None:
        softmaxes = np.empty((n_tokens, n_heads, 2), np.float32)
    chunk = Chunk(
        q=q,
        segments=segments,
        out=out,
        works=s.chunk_works,
        newest=s.newest,
        softmaxes=softmaxes,
    )
    s.attend_chunk(s.chunk.fill(chunk), n_kv_heads, start, seen, *scoring)
    if sink_logits is not None:
        add_sinks(out, softmaxes, sink_logits)
    if log_sums is not None:
        np.add(softmaxes[..., 0], np.log(softmaxes[..., 1]), out=log_sums)


def _attend_token(
    q: F32,
    segments: NDArray[np.int64],
    start: int,
    window: int,
    out: F32,
    scoring: Scoring,
    s: AttentionScratch,
) -> None:
    s.ready(n_threads())
    split, memory = s.split, s.token.address
    cache = CacheAddresses(segments.ctypes.data, cell_of(start))
    s.attend(q.ctypes.data, *split, *cache, window, *scoring, memory)
    parallel = s.blocks.sums.size > _SERIAL_ELEMENTS
    s.merge(*split, cache.start, window, out.ctypes.data, memory, parallel=parallel)
