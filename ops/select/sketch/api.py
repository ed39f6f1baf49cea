"""The checking wrappers of the sketch index: sketches of keys, and the best by their estimates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Table, kernel, kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, append_facts
from ...attention.work import WORK_BYTES, listed_work_bytes
from ...errors import OpsError
from ..choice import Range, SelectScratch, check_choice
from .tables import CALL, KEYS, SCRATCH

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
_SERIAL_TOKENS = 4

_sketch_keys = kernel(f"{__package__}.keys", "sketch_keys_kernel")
_best_sketched = kernels(f"{__package__}.scan", "make_sketch")
_keys = Table(KEYS)


def sketch_bits(head_dim: int) -> int:
    """Bits of a sketch: head_dim up to 64, 128 or 256."""
    return next(n for n in (64, 128, 256) if head_dim <= n)


@dataclass(frozen=True)
class Rotation:
    """A rotation R of padded keys: float32 `[in][out]` of (bits, bits), then `bits` zeros, flat."""

    weights: F32
    bits: int

    @staticmethod
    def random(head_dim: int, seed: int) -> "Rotation":
        """The Q of the QR factorisation of a normal matrix from NumPy's generator with `seed`."""
        bits = sketch_bits(head_dim)
        normal = np.random.default_rng(seed).standard_normal((bits, bits))
        q, r = np.linalg.qr(normal)
        q = (q * np.sign(np.diag(r))).astype(np.float32)
        return Rotation(np.concatenate([q.ravel(), np.zeros(bits, np.float32)]), bits)


def check_rotation(name: str, rotation: Rotation, layout: TileLayout) -> None:
    """Raise OpsError unless the rotation is one of keys of this layout."""
    if rotation.bits != sketch_bits(layout.head_dim):
        raise OpsError(f"{name}: a rotation of {rotation.bits} for head_dim {layout.head_dim}")


def sketch_keys(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    bits: I64,
    factors: I64,
    first: int,
    last: int,
) -> None:
    """Write the sketches of the stored keys of tokens first .. last-1 into two columns.

    bits, factors: base addresses of the segments of columns of rotation.bits / 8 and 2 bytes.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    if not 0 <= first <= last <= room:
        raise OpsError(f"sketches: tokens {first} to {last - 1} lie outside the {room} stored")
    check_rotation("sketches", rotation, layout)
    n = n_threads() * 2 * rotation.bits
    works = aligned(n, np.float32)[:n].reshape(n_threads(), -1)
    works[:] = 0  # what rows have beyond head_dim
    _sketch_keys(
        _keys(segments, append_facts(layout), bits, factors, rotation.weights, works), n_kv_heads,
        rotation.bits, first, last, parallel=last - first > _SERIAL_TOKENS,
    )  # fmt: skip


class SketchScratch(SelectScratch):
    """SelectScratch with what estimates and exact scores of candidates need.

    k: the most candidates a query head (`few`).
    """

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout, self.bits = layout, sketch_bits(layout.head_dim)
        self.call, self.arrays = Table(CALL), Table(SCRATCH)

    def ready(self, threads: int) -> None:
        """As SelectScratch's."""
        before = self.threads
        super().ready(threads)
        if threads > before:
            n, padded = self.together, self.layout.padded
            rows = aligned(threads * self.group * padded, np.float32)
            self.rows = rows[: threads * self.group * padded].reshape(threads, self.group, padded)
            turned = aligned(threads * 2 * self.bits, np.float32)
            self.turned = turned[: threads * 2 * self.bits].reshape(threads, 2, self.bits)
            self.sums = np.empty((threads, n, self.bits // 4, 16), np.int8)
            size = listed_work_bytes(self.layout.tile_bytes)
            self.rooms = aligned(threads * size, np.uint8).reshape(threads, size)
            self.works = aligned(threads * WORK_BYTES, np.uint8).reshape(threads, WORK_BYTES)
            self.best = np.empty((threads, n), np.float32)
            size = threads * 2 * n * SEGMENT
            self.near = aligned(size, np.int8).reshape(threads, 2, n, SEGMENT)
            self.chosen = np.zeros_like(self.marks)
            self.arrays(
                self.rows, self.turned, self.sums, self.rooms, self.works, self.limits, self.masks,
                self.near, self.orders, self.best, self.entries, self.seen, self.spare, self.marks,
                self.chosen, self.histograms,
            )  # fmt: skip


def check_query(name: str, q: F32, s: SketchScratch) -> None:
    """Raise OpsError unless q holds one token's query heads."""
    shape = 1, s.n_kv_heads * s.group, s.layout.head_dim
    if q.shape != shape or q.dtype != np.float32 or not q.flags.c_contiguous:
        raise OpsError(f"{name}: q is {q.dtype} {q.shape}, expected contiguous float32 {shape}")


def best_sketched(
    q: F32,
    segments: I64,
    bits: I64,
    factors: I64,
    rotation: Rotation,
    among: Range,
    k: int,
    few: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    scratch: SketchScratch,
) -> None:
    """Lists of tokens: the k largest q . key of the `few` best estimates of each head of a group.

    Of `among`, each query head's `few` >= k best estimates become candidates of its whole group,
    of which each head takes the k largest exact products; their union is the list. q float32
    (1, H, E); index uint32 (J, room) with room for the candidates too; the rest as `nearest`.
    """
    s = scratch
    few = min(few, among.last - among.first)
    check_choice("sketches", among, few, index, counts, s)
    check_query("sketches", q, s)
    if not 1 <= k <= few:
        raise OpsError(f"sketches: cannot choose {k} of {few} candidates")
    if among.stop > SEGMENT * min(len(segments), len(bits), len(factors)):
        raise OpsError(f"sketches: token {among.stop - 1} lies outside the columns")
    s.ready(n_threads())
    _best_sketched(*s.layout.codes, s.bits, s.together)(
        s.call(q, segments, bits, factors, rotation.weights, index, counts), s.arrays.address,
        s.n_kv_heads, among.first, among.last, among.stop, k, few, seed,
    )  # fmt: skip
