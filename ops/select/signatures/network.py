"""Encoders of keys and queries: networks whose outputs' signs are signatures, and SimHash.

SimHash: bit i of a signature says on which side of a random hyperplane a vector lies,

    bit i = (plane_i . x > 0)

Two vectors at angle a agree in a bit with probability 1 - a / pi (Charikar 2002).

Signatures are stored on disk, in index columns of packs (`hash`) and in snapshots (`hashevict`),
and compared with those of later queries. So the planes are part of both formats: NumPy's default
generator, the seed, standard normal elements, and the order of drawing, each method's own.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ....jit.threads import n_threads
from ...arrays import F32, I64, U64
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import IN_ORDER, check_slots, check_stored
from ..work import MAX_WIDTH
from .arguments import Encoder, HeadRows, Keys

_SERIAL_TOKENS = 4  # to encode that cost less than waking the threads

_keys, _heads = Arguments(Keys), Arguments(HeadRows)


@lazy_kernel
def _encode_keys() -> DefinedKernel:
    from .encode import encode_keys_kernel

    return encode_keys_kernel


@lazy_kernel
def _encode_heads() -> DefinedKernel:
    from .encode import encode_heads_kernel

    return encode_heads_kernel


@dataclass(frozen=True)
class Network:
    """An encoder: y = W_n silu(… silu(W_1 x + b_1) …) + b_n, whose signs are a signature.

    weights float32: for each layer W `[in][out]`, then b `[out]`; widths: E, …, bits. Hidden
    widths are multiples of 16 up to 1,024, bits 32 or 64.
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
            raise OpsError(
                f"encoder: weights are {self.weights.dtype} {self.weights.shape}, expected float32 "
                f"({n},)"
            )

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
    stop: int,
) -> None:
    """Write the signatures of the stored keys of tokens first .. stop-1 into a column.

    Keys are read as stored: dequantised, rotated back. segments, items: base addresses of the
    segments of K and V and of the column, `[kv_head][token]` of bits / 8 bytes.
    """
    check_stored("encoder: tokens", first, stop, SEGMENT * min(len(segments), len(items)))
    keys = _keys_of(network, segments, layout, items, IN_ORDER)
    parallel, item_bytes = stop - first > _SERIAL_TOKENS, network.bits // 8
    _encode_keys(_keys.fill(keys), item_bytes, n_kv_heads, first, stop, parallel=parallel)


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
    keys = _keys_of(network, segments, layout, items, slots)
    parallel, item_bytes = n_tokens > _SERIAL_TOKENS, network.bits // 8
    _encode_keys(_keys.fill(keys), item_bytes, len(slots), 0, n_tokens, parallel=parallel)


def _keys_of(
    network: Network, segments: I64, layout: TileLayout, items: I64, slots: NDArray[np.int32]
) -> Keys:
    if network.widths[0] != layout.head_dim:
        raise OpsError(f"encoder: made for {network.widths[0]} inputs, keys have {layout.head_dim}")
    encoder = encoder_of(network, n_threads())
    return Keys(segments, stored_layout(layout), items, slots, encoder)


def encode_rows(network: Network, x: F32, out: U64) -> None:
    """Signatures of the rows of x float32 (n, E) into out uint64 (n,)."""
    if x.ndim != 2 or x.shape[1] != network.widths[0] or out.shape != x.shape[:1]:
        raise OpsError(f"encoder: rows of {x.shape} into {out.shape}, widths {network.widths}")
    rows = HeadRows(x[:, None], out[:, None], encoder_of(network, 1))
    _encode_heads(_heads.fill(rows), 0, 1, parallel=False)


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


def hyperplanes(
    head_dim: int, bits: int, seed: tuple[int, ...], drawn: Literal["by element", "by plane"]
) -> F32:
    """Random hyperplanes through the origin, float32 (E, bits).

    drawn: "by element", the first element of every plane before any second one (`hash`); or "by
    plane", one plane after the other (`hashevict`).
    """
    rng = np.random.default_rng(seed)
    if drawn == "by element":
        return rng.standard_normal((head_dim, bits)).astype(np.float32)
    return rng.standard_normal((bits, head_dim)).astype(np.float32).T


def simhash_network(planes: F32) -> Network:
    """The network of one layer, without bias, whose signatures are those of planes (E, bits).

    Signatures have 32 or 64 bits; those beyond the planes are 0.
    """
    n, bits = planes.shape
    lanes = 32 if bits <= 32 else 64
    weights = aligned((n + 1, lanes), np.float32)
    weights[:] = 0
    weights[:n, :bits] = planes
    return Network(weights.ravel(), (n, lanes))
