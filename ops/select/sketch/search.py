"""What wrappers that choose by sketches share: the rotation, scratch, checks."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....jit.arena import aligned
from ...attention.layout import TileLayout
from ...errors import OpsError
from ..choice import F32, I64, U64, Lists, Range, SelectScratch, check_choice, check_query
from ..rerank import Wanted, products_scratch
from .arguments import Search


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


class SketchedKeys(NamedTuple):
    """Stored keys and their sketches: base addresses of the segments of K and V and of two columns
    of rotation.bits / 8 and 2 bytes, and the rotation."""

    segments: I64
    bits: I64
    factors: I64
    rotation: Rotation


def check_rotation(name: str, rotation: Rotation, layout: TileLayout) -> None:
    """Raise OpsError unless the rotation is one of keys of this layout."""
    if rotation.bits != sketch_bits(layout.head_dim):
        raise OpsError(f"{name}: a rotation of {rotation.bits} for head_dim {layout.head_dim}")


class SearchScratch(SelectScratch):
    """SelectScratch with what estimates and exact scores of candidates need.

    k: the most candidates a query head may have.
    """

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout, self.bits = layout, sketch_bits(layout.head_dim)

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        self.search = Search(
            products=products_scratch(threads, self.group, self.layout),
            rotated=aligned((threads, 2, self.bits), np.float32),
            tables=np.empty((threads, self.together, self.bits // 4, 16), np.int8),
            order=self.order,
            found=self.found,
            chosen=np.zeros_like(self.found.marks),
            listed=np.empty((threads, self.n_ctx), np.uint32),
        )


def check_search(
    name: str, q: F32, among: Range, wanted: Wanted, lists: Lists, taken: U64, s: SearchScratch
) -> Wanted:
    """Raise OpsError unless these fit each other and the scratch; returns what is wanted, with no
    more candidates of a query head than there are tokens."""
    k, n_candidates, _ = wanted
    n_candidates = min(n_candidates, max(k, among.last - among.first))
    if not k <= n_candidates <= s.k:
        raise OpsError(
            f"{name}: cannot choose {k} of {n_candidates} candidates, there is room for {s.k}"
        )
    check_choice(name, among, k, lists, taken, s)
    check_query(name, q, s, s.layout.head_dim)
    return wanted._replace(n_candidates=n_candidates)
