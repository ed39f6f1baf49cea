"""The checking wrappers: SimHash, sign_tokens, replace_farthest and set_positions."""

import numpy as np
from numpy.typing import NDArray

from ..attention.append import append_facts
from ..attention.layout import SEGMENT, TileLayout
from ..errors import OpsError
from ..reference.attention import rotate
from ..simd import aligned
from ..threads import n_threads
from .farthest import positions_kernel, replace_kernel, sign_kernel

F32 = NDArray[np.float32]
Addresses = NDArray[np.int64]
MIN_BITS, MAX_BITS = 4, 64
LAST_POSITION = (1 << 31) - 1
# Slots of all heads whose scan costs less than waking the threads (about 5 us).
_SERIAL_SLOTS = 8_192


class SimHash:
    """Random hyperplanes through the origin: bit i of a signature is planes[i] . x > 0.

    planes float32 (bits, E), standard normal, from `seed`. Keys are signed as stored: where the
    layout rotates K the hyperplanes are rotated alike. Raises OpsError unless 4 <= bits <= 64.
    """

    def __init__(self, layout: TileLayout, bits: int, seed: int | tuple[int, ...]) -> None:
        if not MIN_BITS <= bits <= MAX_BITS:
            raise OpsError(f"SimHash: {bits} bits, expected {MIN_BITS} to {MAX_BITS}")
        self.layout, self.bits, self.words = layout, bits, -(-bits // 32)
        rng = np.random.default_rng(seed)
        self.planes = rng.standard_normal((bits, layout.head_dim)).astype(np.float32)
        rows = np.pad(self.planes, [(0, -bits % 16), (0, layout.padded - layout.head_dim)])
        stored = rotate(rows, layout.rotation) if layout.rotates_k else rows
        self.q_planes, self.k_planes = (_columns(x) for x in (rows, stored))
        self.facts = append_facts(layout)


def _columns(rows: NDArray[np.floating]) -> F32:
    """(lanes, E) to float32 (E, lanes) on a cache line."""
    out: F32 = aligned(rows.size, np.float32)[: rows.size].reshape(rows.T.shape)
    out[:] = rows.T
    return out


class EvictScratch:
    """Memory for each of up to `threads` threads; made once, replacing allocates nothing."""

    def __init__(self, layout: TileLayout, group: int, words: int) -> None:
        threads = n_threads()
        self.buffers: F32 = aligned(threads * layout.padded, np.float32)
        self.buffers = self.buffers[: threads * layout.padded].reshape(threads, layout.padded)
        self.codes = np.empty((threads, words, group), np.uint32)
        self.lanes = np.empty((threads, 2, 16), np.int32)


def _check(what: str, x: F32, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != np.float32 or not x.flags.c_contiguous:
        found = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
        raise OpsError(f"{what} is {found}, expected contiguous float32 {shape}")


def _check_room(what: str, stop: int, *columns: Addresses) -> None:
    room = min(map(len, columns)) * SEGMENT
    if stop > room:
        raise OpsError(f"{what}: slots up to {stop - 1} do not fit in {room}: reserve more")


def sign_tokens(
    segments: Addresses,
    n_kv_heads: int,
    simhash: SimHash,
    signatures: tuple[Addresses, ...],
    start: int,
    stop: int,
    scratch: EvictScratch,
) -> None:
    """Signatures of the keys in slots start .. stop-1, as stored, into columns of 4-byte words.

    segments: base addresses of K and V; signatures: of one column for each 32 bits.
    """
    _check_room("sign_tokens", stop, segments, *signatures)
    sign_kernel(
        segments, n_kv_heads, simhash.facts, simhash.k_planes, signatures[0], signatures[-1],
        start, stop, scratch.buffers[: min(n_threads(), len(scratch.buffers))],
    )  # fmt: skip


def replace_farthest(
    q: F32,
    k: F32,
    v: F32,
    segments: Addresses,
    simhash: SimHash,
    signatures: tuple[Addresses, ...],
    positions: Addresses,
    *,
    n_slots: int,
    position: int,
    sinks: int,
    recent: int,
    scratch: EvictScratch,
) -> None:
    """Per KV head, write a token over the one whose signature is farthest from the queries'.

    q float32 (1, H, E), k, v float32 (1, J, E) at `position`; all n_slots are filled. Farthest:
    Hamming distance summed over the group's query heads; ties by the highest
    (position * 0x9E3779B1 mod 2^32) >> 16, then the lowest slot. Positions below `sinks` and the
    last `recent` ones stay. Source: HashEvict, algorithm 1. Raises OpsError where shapes do not
    fit or every slot is protected.
    """
    layout, n_kv_heads = simhash.layout, k.shape[1]
    _check("replace_farthest: q", q, (1, scratch.codes.shape[2] * n_kv_heads, layout.head_dim))
    _check("replace_farthest: k", k, (1, n_kv_heads, layout.head_dim))
    _check("replace_farthest: v", v, k.shape)
    _check_room("replace_farthest", n_slots, segments, positions, *signatures)
    if not sinks + recent < n_slots <= position <= LAST_POSITION:
        raise OpsError(
            f"replace_farthest: {n_slots} slots for position {position}, expected more than the "
            f"{sinks} + {recent} that stay, all filled"
        )
    threads = 1
    if n_slots * n_kv_heads > _SERIAL_SLOTS:
        threads = min(n_threads(), n_kv_heads, len(scratch.buffers))
    replace_kernel(
        q, k, v, segments, simhash.facts, simhash.q_planes, simhash.k_planes, signatures[0],
        signatures[-1], positions, n_slots, position, sinks, recent, scratch.buffers,
        scratch.codes, scratch.lanes, threads,
    )  # fmt: skip


def set_positions(
    positions: Addresses, n_kv_heads: int, slot: int, position: int, count: int
) -> None:
    """Slots slot .. slot+count-1 of every head hold positions position .. position+count-1."""
    _check_room("set_positions", slot + count, positions)
    positions_kernel(positions, n_kv_heads, slot, position, count)
