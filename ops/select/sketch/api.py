"""The checking wrappers of the sketch index: sketches of keys, and the best by their estimates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...attention.work import WORK_BYTES, gathered_work_bytes
from ...errors import OpsError
from ..choice import Range, SelectScratch, check_choice
from .arguments import Keys, Products, Query, Scan, Scratch, Wanted

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
_SERIAL_TOKENS = 4

_keys = Arguments(Keys)


@lazy_kernel
def _sketch_keys() -> DefinedKernel:
    from .keys import sketch_keys_kernel

    return sketch_keys_kernel


@lazy_kernels
def _best_sketched(
    k_type: int, v_type: int, blocks: int, bits: int, together: int
) -> DefinedKernel:
    from .scan import make_sketch

    return make_sketch(k_type, v_type, blocks, bits, together)


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
    works = aligned((n_threads(), 2 * rotation.bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    keys = Keys(
        segments=segments,
        layout=stored_layout(layout),
        bits=bits,
        factors=factors,
        rotation=rotation.weights,
        works=works,
    )
    parallel = last - first > _SERIAL_TOKENS
    _sketch_keys(_keys.fill(keys), n_kv_heads, rotation.bits, first, last, parallel=parallel)


class SketchScratch(SelectScratch):
    """SelectScratch with what estimates and exact scores of candidates need.

    k: the most candidates a query head (`few`).
    """

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout, self.bits = layout, sketch_bits(layout.head_dim)
        self.query, self.arguments = Arguments(Query), Arguments(Scratch)

    def ready(self, threads: int) -> None:
        """As SelectScratch's."""
        before = self.threads
        super().ready(threads)
        if threads > before:
            self.sketches = self._sketch_arrays(threads)
            self.arguments.fill(self.sketches)

    def _sketch_arrays(self, threads: int) -> Scratch:
        n, layout = self.together, self.layout
        products = Products(
            rows=aligned((threads, self.group, layout.padded), np.float32),
            rooms=aligned((threads, gathered_work_bytes(layout.tile_bytes)), np.uint8),
            works=aligned((threads, WORK_BYTES), np.uint8),
        )
        scan = Scan(
            limits=self.limits,
            masks=self.masks,
            sums=aligned((threads, 2, n, SEGMENT), np.int8),
        )
        return Scratch(
            products=products,
            turned=aligned((threads, 2, self.bits), np.float32),
            tables=np.empty((threads, n, self.bits // 4, 16), np.int8),
            scan=scan,
            order=self.orders,
            found=self.candidates(np.empty((threads, n), np.float32)),
            chosen=np.zeros_like(self.marks),
        )


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
    query = Query(
        q=q,
        segments=segments,
        bits=bits,
        factors=factors,
        rotation=rotation.weights,
        lists=index,
        counts=counts,
    )
    choose = _best_sketched(*s.layout.codes, s.bits, s.together)
    wanted = Wanted(k, few, seed)
    choose(s.query.fill(query), s.arguments.address, s.n_kv_heads, *among, *wanted)
