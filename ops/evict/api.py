"""The checking wrappers: staging tokens, choosing their slots, attending, moving them there."""

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import Table, kernel, kernels
from ...jit.threads import n_threads
from ..attention import AttentionScratch, append_kv
from ..attention.layout import SEGMENT, TILE, TileLayout, append_facts
from ..errors import OpsError
from .simhash import MAX_BITS, SimHash
from .tables import CHOOSE, LEAVES, LEAVING, POSITIONS, SETTLE, SIGN

F32 = NDArray[np.float32]
Addresses = NDArray[np.int64]
LAST_POSITION = (1 << 31) - 1
# Slots to scan, of all tokens and heads, that one thread is through with (50 us) before a second
# one has woken: 4,096 slots of 8 heads took 37 us alone, and 31 to 110 us shared by two.
_SERIAL_SLOTS = 65_536

_sign = kernel(f"{__package__}.farthest", "sign_kernel")
_choose = kernel(f"{__package__}.farthest", "choose_kernel")
_leaves = kernel(f"{__package__}.moves", "leaves_kernel")
_leaving = kernels(f"{__package__}.chunk", "make_leaving")
_settle = kernel(f"{__package__}.moves", "settle_kernel")
_set_positions = kernel(f"{__package__}.moves", "positions_kernel")
_positions = Table(POSITIONS)


class Stage:
    """Up to `max_tokens` tokens on their way into up to `max_slots` slots of a layer.

    Shared by the layers of a context; made once, evicting allocates nothing.
    """

    def __init__(
        self, layout: TileLayout, group: int, n_kv_heads: int, max_slots: int, max_tokens: int
    ) -> None:
        if not 1 <= max_tokens <= SEGMENT:
            raise OpsError(f"Stage: {max_tokens} tokens, expected 1 to {SEGMENT}")
        self.layout, self.group, self.n_kv_heads = layout, group, n_kv_heads
        self.max_slots, self.max_tokens = max_slots, max_tokens
        self.memory = aligned(layout.segment_bytes(n_kv_heads), np.uint8)
        self.memory[:] = 0  # rows beyond the last token are read, and masked
        self.segments: Addresses = np.array([self.memory.ctypes.data], np.int64)
        self.facts = append_facts(layout)
        self.taken = np.zeros((n_kv_heads, max_tokens), np.int32)
        self.first_staged = -(-max_slots // TILE) * TILE
        width = self.first_staged + -(-max_tokens // TILE) * TILE
        self.leaves = np.zeros((n_kv_heads, width), np.int32)
        self.n_tokens = self.threads = 0
        self.sign, self.choose = Table(SIGN), Table(CHOOSE)
        self.leave, self.leaving, self.move = Table(LEAVES), Table(LEAVING), Table(SETTLE)

    def ready(self, threads: int) -> None:
        """Have scratch for each of `threads` threads."""
        if threads > self.threads:
            self.codes = np.empty((threads, MAX_BITS // 32, self.group), np.uint32)
            self.lanes = np.empty((threads, 2, 16), np.int32)
            n = threads * self.layout.padded
            self.buffers: F32 = aligned(n, np.float32)[:n].reshape(threads, -1)
            self.threads = threads

    def put(self, k: F32, v: F32) -> None:
        """Store k, v float32 (T, J, E) as the stage's only tokens, in the cache's types."""
        if not 1 <= len(k) <= self.max_tokens:
            raise OpsError(f"Stage: {len(k)} tokens, expected 1 to {self.max_tokens}")
        append_kv(k, v, self.segments, self.layout, 0)
        self.n_tokens = len(k)


def _check(what: str, x: F32, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != np.float32 or not x.flags.c_contiguous:
        found = f"{x.dtype} {x.shape}" + ("" if x.flags.c_contiguous else ", not contiguous")
        raise OpsError(f"{what} is {found}, expected contiguous float32 {shape}")


def _check_room(what: str, stop: int, *columns: Addresses) -> None:
    room = min(map(len, columns)) * SEGMENT
    if stop > room:
        raise OpsError(f"{what}: slots up to {stop - 1} do not fit in {room}: reserve more")


def sign_tokens(
    stage: Stage,
    segments: Addresses,
    simhash: SimHash,
    signatures: tuple[Addresses, ...],
    start: int,
    stop: int,
) -> None:
    """Signatures of the keys in slots start .. stop-1, as stored, into columns of 4-byte words.

    segments: base addresses of K and V; signatures: of one column for each 32 bits.
    """
    _check_room("sign_tokens", stop, segments, *signatures)
    stage.ready(n_threads())
    arrays = stage.sign(
        segments, stage.facts, simhash.k_planes, signatures[0], signatures[-1], stage.buffers
    )
    _sign(arrays, stage.n_kv_heads, start, stop)


def choose_farthest(
    stage: Stage,
    q: F32,
    simhash: SimHash,
    signatures: tuple[Addresses, ...],
    positions: Addresses,
    *,
    n_slots: int,
    position: int,
    sinks: int,
    recent: int,
) -> None:
    """Give each staged token, in turn, the slot whose signature is farthest from its queries.

    q float32 (T, H, E) of the staged tokens, at positions position ..; all n_slots are filled.
    Farthest: Hamming distance summed over the query heads of a KV head; ties by the highest
    (position * 0x9E3779B1 mod 2^32) >> 16, then the lowest slot. Positions below `sinks` and the
    last `recent` before the token stay. Signatures and positions become the new ones; K and V
    follow with `settle`. Source: HashEvict, algorithm 1. Raises OpsError where shapes do not fit
    or every slot is protected.
    """
    s, layout = stage, stage.layout
    _check("choose_farthest: q", q, (s.n_tokens, s.group * s.n_kv_heads, layout.head_dim))
    _check_room("choose_farthest", n_slots, positions, *signatures)
    _check_slots("choose_farthest", stage, n_slots)
    if not sinks + recent < n_slots <= position <= LAST_POSITION - s.n_tokens:
        raise OpsError(
            f"choose_farthest: {n_slots} slots for position {position}, expected more than the "
            f"{sinks} + {recent} that stay, all filled"
        )
    s.ready(n_threads())
    arrays = s.choose(
        q, s.segments, s.facts, simhash.q_planes, simhash.k_planes, signatures[0], signatures[-1],
        positions, s.taken, s.buffers, s.codes, s.lanes,
    )  # fmt: skip
    many = n_slots * s.n_kv_heads * s.n_tokens > _SERIAL_SLOTS
    _choose(
        arrays, n_slots, position, sinks, recent, simhash.words,
        parallel=many,
    )  # fmt: skip


def choose_oldest(stage: Stage, n_slots: int, position: int, sinks: int) -> None:
    """Give each staged token the slot of the oldest one behind the sinks.

    Position p takes slot sinks + (p - sinks) mod (n_slots - sinks): the slots hold the first
    `sinks` and the last n_slots - sinks positions. Source: StreamingLLM.
    """
    _check_slots("choose_oldest", stage, n_slots)
    if not 0 <= sinks < n_slots:
        raise OpsError(f"choose_oldest: {sinks} sinks in {n_slots} slots leave nothing to evict")
    n, first = stage.n_tokens, position - sinks
    stage.taken[:, :n] = sinks + np.arange(first, first + n) % (n_slots - sinks)


def settle(stage: Stage, segments: Addresses, positions: Addresses, position: int) -> None:
    """Move the staged tokens, which stand at positions position .., into the slots they took."""
    arrays = stage.move(stage.segments, segments, positions, stage.facts, stage.taken)
    _settle(arrays, stage.n_tokens, position, parallel=False)


def leaving_attention(
    stage: Stage,
    q: F32,
    segments: Addresses,
    n_slots: int,
    out: F32,
    *,
    scale: float,
    softcap: float = 0.0,
    scratch: AttentionScratch,
) -> None:
    """Attention of the staged tokens, each over what the slots hold once it has its own.

    q, out float32 (T, H, E); called between choosing and `settle`: query t sees the tokens in the
    slots that staged tokens 0 .. t have not replaced, and those of 0 .. t that are not replaced
    themselves. Bit-equal for any number of threads. Raises OpsError where shapes do not fit.
    """
    s = stage
    _check("leaving_attention: q", q, (s.n_tokens, s.group * s.n_kv_heads, s.layout.head_dim))
    _check("leaving_attention: out", out, q.shape)
    _check_room("leaving_attention", n_slots, segments)
    _check_slots("leaving_attention", stage, n_slots)
    scratch.ready(n_threads())
    _leaves(s.leave(s.taken, s.leaves), s.n_tokens, n_slots, s.first_staged, parallel=False)
    arrays = s.leaving(q, segments, s.segments, s.leaves, out, scratch.rows, scratch.newest)
    _leaving(*s.layout.codes)(
        arrays, s.n_kv_heads, n_slots, s.first_staged, float(scale), float(softcap)
    )


def _check_slots(what: str, stage: Stage, n_slots: int) -> None:
    if not 1 <= n_slots <= stage.max_slots or not stage.n_tokens:
        raise OpsError(
            f"{what}: {stage.n_tokens} staged tokens and {n_slots} slots, expected tokens and 1 to "
            f"{stage.max_slots} slots"
        )


def set_positions(
    positions: Addresses, n_kv_heads: int, slot: int, position: int, count: int
) -> None:
    """Slots slot .. slot+count-1 of every head hold positions position .. position+count-1."""
    _check_room("set_positions", slot + count, positions)
    _set_positions(_positions(positions), n_kv_heads, slot, position, count, parallel=False)
