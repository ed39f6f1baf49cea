"""The checking wrappers: signatures of keys and queries, the nearest by Hamming distance."""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Table, kernel, kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, append_facts
from ...errors import OpsError
from ..choice import Range, SelectScratch, check_choice
from ..work import MAX_WIDTH, PLANE_BYTES
from .tables import CALL, ENCODE_KEYS, ENCODE_ROWS, SCRATCH

F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
# Signatures that one thread compares with 4 queries each in less than the others need to wake.
_SERIAL_SIGNATURES = 32_768
_SERIAL_TOKENS = 4  # to encode that cost less than waking the threads

_encode_keys = kernel(f"{__package__}.encode", "encode_keys_kernel")
_encode_rows = kernel(f"{__package__}.encode", "encode_rows_kernel")
_hamming = kernels(f"{__package__}.hamming", "make_hamming")
_keys, _rows = Table(ENCODE_KEYS), Table(ENCODE_ROWS)


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
    arrays = _keys(segments, append_facts(layout), items, network.weights, _widths(network.widths))
    _encode_keys(
        arrays, network.bits // 8, n_kv_heads, first, last, _work(n_threads()).ctypes.data,
        parallel=last - first > _SERIAL_TOKENS,
    )  # fmt: skip


def encode_rows(network: Network, x: F32, out: U64) -> None:
    """Signatures of the rows of x float32 (n, E) into out uint64 (n,)."""
    if x.ndim != 2 or x.shape[1] != network.widths[0] or out.shape != x.shape[:1]:
        raise OpsError(f"encoder: rows of {x.shape} into {out.shape}, widths {network.widths}")
    arrays = _rows(x, network.weights, _widths(network.widths), out)
    _encode_rows(arrays, _work(1).ctypes.data, parallel=False)


class SignatureScratch(SelectScratch):
    """SelectScratch with what comparing signatures needs."""

    def __init__(self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.call, self.arrays = Table(CALL), Table(SCRATCH)

    def ready(self, threads: int) -> None:
        """As SelectScratch's."""
        before = self.threads
        super().ready(threads)
        if threads > before:
            n = self.together
            self.tables = aligned(threads * n * 256, np.uint8).reshape(threads, n, 16, 16)
            self.planes = aligned(threads * PLANE_BYTES, np.uint8).reshape(threads, PLANE_BYTES)
            # Of each thread in cache lines of its own.
            self.tally = aligned(threads * 24, np.int64).reshape(threads, 3, 8)
            self.arrays(
                self.tables, self.limits, self.planes, self.masks, self.tally, self.orders,
                self.entries, self.spare, self.marks, self.histograms,
            )  # fmt: skip


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
    scratch: SignatureScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    Distance: set bits of signature xor query; equal ones in the order of `lots`. queries
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
    s.ready(n_threads())
    few = (among.last - among.first) * s.n_kv_heads <= _SERIAL_SIGNATURES
    _hamming(bits, s.together)(
        s.call(queries, items, index, counts), s.arrays.address, among.first, among.last,
        among.stop, k, seed, parallel=not few,
    )  # fmt: skip
