"""The checking wrappers: append_kv, attention and its scratch. Imports no Numba."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import cell_of, kernel, kernels
from ...jit.threads import n_threads
from ..errors import OpsError
from .layout import SEGMENT, TileLayout, append_facts, n_segments
from .work import ROWS, chunk_work_floats, token_work_bytes

F32 = NDArray[np.float32]
_FLOAT = np.dtype(np.float32)
_append_kernel = kernel(f"{__package__}.append", "append_kernel")
_attend_kernel = kernels(f"{__package__}.decode.token", "attend_kernel")
_merge_kernel = kernels(f"{__package__}.decode.token", "merge_kernel")
_chunk_kernel = kernels(f"{__package__}.prefill.chunk", "chunk_kernel")
_FAR = 1 << 60  # a window that hides nothing
_SERIAL_ROWS = 64  # rows to append that cost less than waking the threads
_SERIAL_ELEMENTS = 1 << 20  # of outputs of blocks to merge, likewise


def _aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Uninitialised memory on a cache line."""
    out: NDArray[Any] = aligned(int(np.prod(shape)), dtype)
    return out[: int(np.prod(shape))].reshape(shape)


@cache
def _append_state(layout: TileLayout, threads: int) -> tuple[NDArray[np.int64], F32]:
    return append_facts(layout), _aligned((threads, layout.padded))


class AttentionScratch:
    """Memory for attention of up to `max_rows` new tokens over up to `n_ctx` tokens.

    Query heads that share a KV head are handled up to 4 at a time (`heads`), in as many rounds as
    it takes (`groups`). Made once; attention allocates nothing.
    """

    def __init__(
        self,
        n_heads: int,
        n_kv_heads: int,
        layout: TileLayout,
        max_rows: int = 512,
        n_ctx: int = SEGMENT,
    ) -> None:
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise OpsError(
                f"attention: {n_heads} query heads cannot share {n_kv_heads} KV heads evenly"
            )
        self.n_heads, self.n_kv_heads, self.layout = n_heads, n_kv_heads, layout
        self.max_rows, self.n_ctx = max_rows, n_ctx
        group = n_heads // n_kv_heads
        self.groups = -(-group // 4)
        self.heads = -(-group // self.groups)
        rows = self.heads * self.groups
        self.merged = _aligned((n_heads, layout.padded))
        self.partial = _aligned((n_segments(n_ctx) + 1, n_kv_heads, rows, layout.padded))
        self.maxima, self.totals = np.empty((2, *self.partial.shape[:3]), np.float32)
        self.attend_kernel = _attend_kernel(*layout.codes, self.heads)
        self.merge_kernel = _merge_kernel(*layout.codes, self.heads)
        self.threads = 0
        self.ready(n_threads())

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            n_bytes = token_work_bytes(self.layout.padded, self.partial.shape[2])
            self.work = _aligned((threads, n_bytes), np.uint8)
            n = chunk_work_floats(self.layout.padded) if self.max_rows > 1 else 0
            self.rows = _aligned((threads, -(-n // 16) * 16))
            self.newest = np.empty((threads, ROWS), np.int64)
            self.threads = threads


def _fail(what: str, found: object, wanted: object) -> OpsError:
    return OpsError(f"{what} is {found}, expected {wanted}")


def _check(name: str, x: F32, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != _FLOAT or not x.flags.c_contiguous:
        found = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
        raise _fail(name, found, f"contiguous float32 {shape}")


def _check_segments(segments: NDArray[np.int64]) -> None:
    if segments.dtype != np.int64 or not segments.flags.c_contiguous:
        raise _fail("attention: segments", segments.dtype, "contiguous int64 addresses")


def append_kv(k: F32, v: F32, segments: NDArray[np.int64], layout: TileLayout, start: int) -> None:
    """Store keys and values of T tokens at positions start .. start+T-1.

    k, v float32 (T, J, E); segments int64: base address of each segment of 1,024 tokens. f16 is
    rounded to nearest even; q8_0 and q4_0 as ggml quantises, q4_0 after the Hadamard rotation.
    Padding becomes zeros (before rotation). Raises OpsError where shapes or room do not fit.
    """
    shape = k.shape
    if len(shape) != 3 or shape[2] != layout.head_dim:
        raise _fail("append_kv: k", shape, f"(tokens, KV heads, {layout.head_dim})")
    _check("append_kv: k", k, shape)
    _check("append_kv: v", v, shape)
    _check_segments(segments)
    if start < 0 or start + shape[0] > len(segments) * SEGMENT:
        raise OpsError(
            f"append_kv: tokens {start} to {start + shape[0] - 1} do not fit in "
            f"{len(segments)} segments of {SEGMENT}: reserve more"
        )
    parallel = shape[0] * shape[1] > _SERIAL_ROWS
    facts, buffers = _append_state(layout, n_threads() if parallel else 1)
    _append_kernel(
        k.ctypes.data, v.ctypes.data, *shape, segments.ctypes.data, cell_of(start),
        facts.ctypes.data, buffers.ctypes.data, buffers.strides[0], parallel=parallel,
    )  # fmt: skip


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
) -> None:
    """out = softmax(cap(scale q K^T) + causal mask) V, exact.

    q, out float32 (T, H, E) at positions start .. start+T-1, all of which are appended already;
    query t sees tokens max(0, pos - window + 1) .. pos. cap(s) = softcap tanh(s / softcap), unless
    softcap is 0. Bit-equal for any number of threads. Raises OpsError where shapes do not fit.
    """
    n_tokens, n_heads, n = shape = q.shape
    _check("attention: q", q, shape)
    _check("attention: out", out, shape)
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
    s, far = scratch, window or _FAR
    if n_tokens == 1:
        _one_token(q, segments, start, far, out, scale, softcap, s)
        return
    if n_tokens > s.max_rows:
        raise _fail("attention: tokens in a chunk", n_tokens, f"at most {s.max_rows}")
    s.ready(n_threads())
    _chunk_kernel(*layout.codes)(
        q.ctypes.data, *shape, segments.ctypes.data, n_kv_heads, start, far, s.rows.ctypes.data,
        s.rows.strides[0], s.newest.ctypes.data, out.ctypes.data, scale, softcap,
    )  # fmt: skip


def _one_token(
    q: F32, segments: NDArray[np.int64], start: int, window: int, out: F32, scale: float,
    softcap: float, s: AttentionScratch,
) -> None:  # fmt: skip
    s.ready(n_threads())
    group, cell = s.n_heads // s.n_kv_heads, cell_of(start)
    blocks = s.partial.ctypes.data, s.maxima.ctypes.data, s.totals.ctypes.data
    s.attend_kernel(
        q.ctypes.data, q.shape[2], s.n_kv_heads, group, segments.ctypes.data, cell, window,
        s.work.ctypes.data, s.work.strides[0], *blocks, scale, softcap,
    )  # fmt: skip
    s.merge_kernel(
        *blocks, s.merged.ctypes.data, q.shape[2], s.n_kv_heads, group, cell, window,
        out.ctypes.data, parallel=s.partial.size > _SERIAL_ELEMENTS,
    )  # fmt: skip


def warm(
    layout: TileLayout, n_heads: int, n_kv_heads: int, *, decode: bool = True, chunk: bool = True
) -> None:
    """Compile (or load from the cache) the kernels for one layout and grouping of heads."""
    group = n_heads // n_kv_heads
    scratch = AttentionScratch(group, 1, layout, max_rows=2, n_ctx=SEGMENT)
    memory = _aligned((layout.segment_bytes(1),), np.uint8)
    segments = np.array([memory.ctypes.data], np.int64)
    k = np.zeros((2, 1, layout.head_dim), np.float32)
    append_kv(k, k, segments, layout, 0)
    q = np.zeros((2, group, layout.head_dim), np.float32)
    for n, wanted in ((1, decode), (2, chunk)):
        if wanted:
            out = np.empty_like(q[:n])
            attention(
                q[:n], segments, layout, 1, 0, out, scale=1.0, window=None, softcap=0.0,
                scratch=scratch,
            )  # fmt: skip
