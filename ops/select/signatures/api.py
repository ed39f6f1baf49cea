"""The checking wrappers: signatures of keys and queries, and the nearest by Hamming distance."""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import F32, I64, Lists, Range, SelectScratch, check_choice, check_slots, check_stored
from ..work import LIMIT_BYTES, MAX_WIDTH, PLANE_BYTES
from .arguments import Encoder, HeadRows, Keys, KeysInSlots, Query, Rows, Scratch

U64 = NDArray[np.uint64]
_SERIAL_SIGNATURES = 32_768  # to compare with 4 queries that cost less than waking the threads
_SERIAL_TOKENS = 4  # to encode that cost less than waking the threads

_keys, _rows, _heads = Arguments(Keys), Arguments(Rows), Arguments(HeadRows)
_in_slots = Arguments(KeysInSlots)


@lazy_kernel
def _encode_keys() -> DefinedKernel:
    from .encode import encode_keys_kernel

    return encode_keys_kernel


@lazy_kernel
def _encode_slots() -> DefinedKernel:
    from .encode import encode_slots_kernel

    return encode_slots_kernel


@lazy_kernel
def _encode_rows() -> DefinedKernel:
    from .encode import encode_rows_kernel

    return encode_rows_kernel


@lazy_kernel
def _encode_heads() -> DefinedKernel:
    from .encode import encode_heads_kernel

    return encode_heads_kernel


@lazy_kernels
def _hamming(bits: int, together: int) -> DefinedKernel:
    from .hamming import make_hamming

    return make_hamming(bits, together)


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
def _works(threads: int) -> F32:
    works: F32 = aligned((threads, 8 * MAX_WIDTH), np.float32)
    return works


@cache
def _widths(network_widths: tuple[int, ...]) -> I64:
    return np.array(network_widths, np.int64)


def encoder_of(network: Network, threads: int) -> Encoder:
    """A network as kernels take it, with scratch for each of `threads` threads."""
    return Encoder(weights=network.weights, widths=_widths(network.widths), works=_works(threads))


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
    check_stored("encoder: tokens", first, last, SEGMENT * min(len(segments), len(items)))
    keys = _keys_of(network, segments, layout, items)
    parallel, item_bytes = last - first > _SERIAL_TOKENS, network.bits // 8
    _encode_keys(_keys.fill(keys), item_bytes, n_kv_heads, first, last, parallel=parallel)


def encode_slots(
    network: Network,
    segments: I64,
    layout: TileLayout,
    items: I64,
    slots: NDArray[np.int32],
    n_tokens: int,
) -> None:
    """Write the signatures of the keys in single slots; the rest as `encode_keys`.

    slots: int32 (J, n_tokens or more), slots of each KV head, any of them more than once.
    """
    check_slots("encoder", slots, n_tokens, SEGMENT * min(len(segments), len(items)))
    arrays = KeysInSlots(keys=_keys_of(network, segments, layout, items), slots=slots)
    parallel = n_tokens > _SERIAL_TOKENS
    _encode_slots(_in_slots.fill(arrays), network.bits // 8, n_tokens, parallel=parallel)


def _keys_of(network: Network, segments: I64, layout: TileLayout, items: I64) -> Keys:
    if network.widths[0] != layout.head_dim:
        raise OpsError(f"encoder: made for {network.widths[0]} inputs, keys have {layout.head_dim}")
    encoder = encoder_of(network, n_threads())
    return Keys(segments=segments, layout=stored_layout(layout), items=items, encoder=encoder)


def encode_rows(network: Network, x: F32, out: U64) -> None:
    """Signatures of the rows of x float32 (n, E) into out uint64 (n,)."""
    if x.ndim != 2 or x.shape[1] != network.widths[0] or out.shape != x.shape[:1]:
        raise OpsError(f"encoder: rows of {x.shape} into {out.shape}, widths {network.widths}")
    rows = Rows(x=x, out=out, encoder=encoder_of(network, 1))
    _encode_rows(_rows.fill(rows), parallel=False)


def encode_heads(network: Network, x: F32, first: int, n_heads: int, out: U64) -> None:
    """Signatures of heads first .. first+n_heads-1 of x float32 (T, H, E) into out uint64 (T, H).

    As matrix products over the rows; the bits are those of `encode_rows`.
    """
    if x.ndim != 3 or x.shape[2] != network.widths[0] or out.shape != x.shape[:2]:
        raise OpsError(f"encoder: heads of {x.shape} into {out.shape}, widths {network.widths}")
    if not 0 <= first < first + n_heads <= x.shape[1]:
        raise OpsError(f"encoder: heads {first} to {first + n_heads - 1} of {x.shape[1]}")
    encoder = encoder_of(network, n_threads())
    _encode_heads(_heads.fill(HeadRows(x=x, out=out, encoder=encoder)), first, n_heads)


class SignatureScratch(SelectScratch):
    """Memory for `nearest`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        found = self.found
        self.arrays = Scratch(
            tables=aligned((threads, self.together, 16, 16), np.uint8),
            limits=aligned((threads, self.masks.shape[2], LIMIT_BYTES), np.uint8),
            planes=aligned((threads, PLANE_BYTES), np.uint8),
            masks=self.masks,
            tally=aligned((threads, 2, 8), np.int64),  # each in cache lines of its own
            order=self.order,
            entries=found.entries,
            spare=found.spare,
            marks=found.marks,
            histogram=found.histogram,
        )
        self.query, self.arguments = Arguments(Query), Arguments.fixed(self.arrays)


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
    taken: U64 | None = None,
    scratch: SignatureScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k nearest of each query head of a KV head.

    Distance: the set bits of signature xor query; `lots` break ties. queries uint64 (J, G); items:
    addresses of a column's segments. Writes counts[j] positions, ascending, to index[j]: uint32
    (J, room), int64 (J,). taken: see `Range`; None: only those outside the range are. The same for
    any number of threads.
    """
    s = scratch
    taken = s.none_taken if taken is None else taken
    check_choice("nearest signatures", among, k, Lists(index, counts), taken, s)
    check_signed("nearest signatures", queries, bits, s)
    s.ready(n_threads())
    parallel = (among.last - among.first) * s.n_kv_heads > _SERIAL_SIGNATURES
    query = s.query.fill(
        Query(queries=queries, items=items, taken=taken, lists=index, counts=counts)
    )
    choose = _hamming(bits, s.together)
    choose(query, s.arguments.address, *among, k, seed, parallel=parallel)


def check_signed(name: str, queries: U64, bits: int, s: SelectScratch) -> None:
    """Raise OpsError unless these are signatures of one token's queries, and of a known size."""
    if queries.shape != (s.n_kv_heads, s.group) or queries.dtype != np.uint64:
        raise OpsError(
            f"{name}: queries are {queries.dtype} {queries.shape}, expected uint64 "
            f"{(s.n_kv_heads, s.group)}"
        )
    if bits not in (32, 64):
        raise OpsError(f"{name}: {bits} bits, expected 32 or 64")
