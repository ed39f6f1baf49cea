"""The checking wrappers: signatures of keys and queries, the nearest by Hamming distance."""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attention.append import append_facts
from ..attention.layout import SEGMENT, TileLayout
from ..errors import OpsError
from ..simd import aligned
from ..threads import n_threads
from .best import HISTOGRAM
from .encode import MAX_WIDTH, encode_keys_kernel, encode_rows_kernel
from .hamming import make_hamming
from .near import PLANE_BYTES

F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
# Signatures that one thread compares with 4 queries each in less than the others need to wake.
_SERIAL_SIGNATURES = 32_768
_SERIAL_TOKENS = 4  # to encode that cost less than waking the threads


@dataclass(frozen=True)
class Network:
    """An encoder: y = W_n silu(… silu(W_1 x + b_1) …) + b_n, whose signs are a signature.

    weights float32: for each layer W `[in][out]`, then b `[out]`; widths: E, …, bits. Hidden
    widths are multiples of 16 up to 512, bits 32 or 64.
    """

    weights: F32
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        pairs = list(pairwise(self.widths))
        fits = all(n % 16 == 0 and 16 <= n <= MAX_WIDTH for n in self.widths[1:])
        if not pairs or not fits or self.widths[-1] not in (32, 64) or self.widths[0] > MAX_WIDTH:
            raise OpsError(
                f"encoder: layers of {self.widths}, expected multiples of 16 up to {MAX_WIDTH}, "
                "the last one 32 or 64"
            )
        n = sum((n_in + 1) * n_out for n_in, n_out in pairs)
        if self.weights.shape != (n,) or self.weights.dtype != np.float32:
            found = f"{self.weights.dtype} {self.weights.shape}"
            raise OpsError(f"encoder: weights are {found}, expected float32 ({n},)")

    @property
    def bits(self) -> int:
        """Bits of a signature."""
        return self.widths[-1]


@cache
def _facts(layout: TileLayout) -> I64:
    return append_facts(layout)


@cache
def _work(threads: int) -> F32:
    n = threads * 3 * MAX_WIDTH
    return aligned(n, np.float32)[:n].reshape(threads, -1)  # type: ignore[no-any-return]


@cache
def _widths(network_widths: tuple[int, ...]) -> I64:
    return np.array(network_widths, np.int64)


def encode_keys(
    network: Network,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    items: I64,
    first: int,
    last: int,
) -> None:
    """Write the signatures of the stored keys of tokens first .. last-1 into a column.

    Keys are read as stored: dequantised, rotated back. segments, items: base addresses of the
    segments of K and V and of the column, `[kv_head][token]` of bits / 8 bytes.
    """
    if network.widths[0] != layout.head_dim:
        raise OpsError(f"encoder: made for {network.widths[0]} inputs, keys have {layout.head_dim}")
    room = SEGMENT * min(len(segments), len(items))
    if not 0 <= first <= last <= room:
        raise OpsError(f"encoder: tokens {first} to {last - 1} lie outside the {room} stored")
    threads = 1 if last - first <= _SERIAL_TOKENS else n_threads()
    encode_keys_kernel(
        segments, _facts(layout), items, network.bits // 8, n_kv_heads, network.weights,
        _widths(network.widths), _work(threads), first, last,
    )  # fmt: skip


def encode_rows(network: Network, x: F32, out: U64) -> None:
    """Signatures of the rows of x float32 (n, E) into out uint64 (n,)."""
    if x.ndim != 2 or x.shape[1] != network.widths[0] or out.shape != x.shape[:1]:
        raise OpsError(f"encoder: rows of {x.shape} into {out.shape}, widths {network.widths}")
    encode_rows_kernel(x, network.weights, _widths(network.widths), _work(1)[0], out)


class SelectScratch:
    """Memory for choosing up to k tokens a query head of up to n_ctx, for each thread.

    `together`: query heads of a group that share one pass over the index, at most 4.
    """

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int) -> None:
        group = n_heads // n_kv_heads
        self.together = next(n for n in (4, 3, 2, 1) if group % n == 0)
        self.n_kv_heads, self.group, self.n_ctx, self.k = n_kv_heads, group, n_ctx, k
        self.threads = 0

    def ready(self, threads: int) -> int:
        """Scratch for each of `threads` threads, at most one a KV head; gives how many."""
        threads = min(threads, self.n_kv_heads)
        if threads > self.threads:
            n, room = self.together, 2 * self.k + 4 * SEGMENT
            even = n + n % 2  # the pairs of queries that are compared together
            self.tables = aligned(threads * n * 256, np.uint8).reshape(threads, n, 16, 16)
            self.limits = aligned(threads * even * 64, np.uint8).reshape(threads, even, 64)
            self.masks = aligned(threads * even * 32, np.uint64).reshape(threads, 2, even, 16)
            self.planes = aligned(threads * PLANE_BYTES, np.uint8).reshape(threads, PLANE_BYTES)
            # Of each query a limit and a count, of each thread in cache lines of its own.
            self.tally = aligned(threads * 16, np.int64).reshape(threads, 2, 8)
            self.entries = np.empty((threads, n, room), np.uint64)
            self.spare = np.empty((threads, 2, room), np.uint64)
            self.seen = np.zeros((threads, n), np.int64)
            self.marks = np.zeros((threads, -(-self.n_ctx // 64)), np.uint64)
            self.histograms = np.zeros((threads, HISTOGRAM), np.int64)
            self.threads = threads
        return threads


@cache
def _hamming(bits: int, together: int) -> Any:
    return make_hamming(bits, together)


@dataclass(frozen=True, slots=True)
class Range:
    """What to choose from: tokens first .. last-1 compete, all others below stop are taken."""

    first: int
    last: int
    stop: int


def check_choice(
    name: str, among: Range, k: int, index: NDArray[np.uint32], counts: I64, s: SelectScratch
) -> None:
    """Raise OpsError unless k of the range fit the lists and the scratch."""
    if not 0 <= among.first < among.last <= among.stop <= s.n_ctx:
        raise OpsError(f"{name}: {among} does not fit a context of {s.n_ctx} tokens")
    if not 1 <= k <= min(s.k, among.last - among.first):
        found = min(s.k, among.last - among.first)
        raise OpsError(f"{name}: cannot choose {k} tokens, expected 1 to {found}")
    fixed = among.first + among.stop - among.last
    longest = fixed + min(k * s.group, among.last - among.first)
    if index.shape[0] != s.n_kv_heads or index.shape[1] < longest or index.dtype != np.uint32:
        raise OpsError(
            f"{name}: lists are {index.dtype} {index.shape}, expected uint32 "
            f"({s.n_kv_heads}, {longest} or more)"
        )
    if counts.shape != (s.n_kv_heads,) or counts.dtype != np.int64:
        raise OpsError(f"{name}: counts are {counts.dtype} {counts.shape}")


def nearest(
    queries: U64,
    items: I64,
    bits: int,
    among: Range,
    k: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    scratch: SelectScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    Distance: set bits of signature xor query; equal ones in the order of `position_hash`. queries
    uint64 (J, G); items: addresses of a column's segments; index uint32 (J, room) ascending,
    counts (J,). The same for any number of threads.
    """
    s = scratch
    check_choice("nearest signatures", among, k, index, counts, s)
    if queries.shape != (s.n_kv_heads, s.group) or queries.dtype != np.uint64:
        raise OpsError(
            f"nearest signatures: queries are {queries.dtype} {queries.shape}, expected uint64 "
            f"{(s.n_kv_heads, s.group)}"
        )
    if bits not in (32, 64):
        raise OpsError(f"nearest signatures: {bits} bits, expected 32 or 64")
    few = (among.last - among.first) * s.n_kv_heads <= _SERIAL_SIGNATURES
    threads = s.ready(1 if few else n_threads())
    _hamming(bits, s.together)(
        queries, items, among.first, among.last, among.stop, k, np.uint32(seed), index, counts,
        s.tables, s.limits, s.planes, s.masks, s.tally, s.entries, s.spare, s.marks,
        s.histograms, threads,
    )  # fmt: skip
