"""The checking wrapper: each query head's best products among candidates by estimates."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from ....ops.attention.layout import TileLayout
from ....ops.select import Lists, Range, SketchedKeys, Wanted, sketch_bits
from ...attention.tiles import Tiles, check_tiles
from ...errors import CudaOpsError
from ...memory import check_floats, in_memory
from ..lists import ListScratch, Marks
from ..sample import ENOUGH, SAMPLE
from .kernels import (
    Passes,
    narrow_kernel,
    prepare_kernel,
    rerank_kernel,
    scan_kernel,
    settle_kernel,
)
from .keys import check_frame, sketches_of

RANGE = 0.65
"""As `ops.select.queries.RANGE`, which is a module of kernels for the CPU."""
CHOOSING = {"BLOCK": 2048, "num_warps": 8}
"""Candidates that `narrow` and `settle` read at a time, and by how many warps."""
TOKENS = 128  # that a program of `rerank` multiplies


class Queries(NamedTuple):
    """What is made of each query head.

    rows float32 (H, 32 blocks): as it is multiplied by keys; work float32 (H, 2 bits): itself and
    its rotation; tables: see `sums`; limits uint32 as int32 (H,): costs of candidates.
    """

    rows: torch.Tensor
    work: torch.Tensor
    tables: torch.Tensor
    limits: torch.Tensor


class Candidates(NamedTuple):
    """Candidates of query heads, and lists of them; k: the most that a head may have.

    entries int64 (H, room), counts (H,): of each head; marks (passes, segments, 32): bits of those
    of a pass; tokens (passes, list_room), n_tokens (passes,): lists of them; scored int64
    (H, list_room): entries with their exact products.
    """

    entries: torch.Tensor
    counts: torch.Tensor
    marks: torch.Tensor
    tokens: torch.Tensor
    n_tokens: torch.Tensor
    scored: torch.Tensor
    room: int
    list_room: int
    k: int


class Search(NamedTuple):
    """The memory of a choice."""

    queries: Queries
    candidates: Candidates
    lists: Marks


class SketchScratch(ListScratch):
    """Memory for `best_sketched`; k: the most candidates that a query head may have."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout, *,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(n_heads, n_kv_heads, n_ctx, device)
        self.tiles, bits = Tiles(layout, n_kv_heads), sketch_bits(layout.head_dim)
        self.together = next(n for n in (4, 3, 2, 1) if self.group % n == 0)
        self.passes = passes = Passes(n_kv_heads, self.group, self.together, bits)
        self.n_passes = n_passes = n_heads // self.together
        k = min(k, self.room)
        # What a sample lets through is some 2 k, or a few of SAMPLE parts of all tokens.
        room = min(self.room, 2 * k + ENOUGH.value + 32 * self.room // SAMPLE.value)
        list_room = min(self.room, self.together * k)
        tables = n_passes, bits // 4, 16, 2 * passes.pairs
        queries = Queries(
            rows=self.zeros(n_heads, layout.padded, dtype=torch.float32),
            work=self.zeros(n_heads, 2 * bits, dtype=torch.float32),
            tables=self.zeros(*tables, dtype=torch.int16),
            limits=self.zeros(n_heads),
        )
        candidates = Candidates(
            entries=self.zeros(n_heads, room, dtype=torch.int64),
            counts=self.zeros(n_heads),
            marks=self.zeros(n_passes, *self.marks.bits.shape[1:]),
            tokens=self.zeros(n_passes, list_room),
            n_tokens=self.zeros(n_passes),
            scored=self.zeros(n_heads, list_room, dtype=torch.int64),
            room=room,
            list_room=list_room,
            k=k,
        )
        self.search = Search(queries, candidates, self.marks)
        self.unused = self.zeros(n_kv_heads)  # see `place_kernel`


def best_sketched(
    q: torch.Tensor,
    keys: SketchedKeys,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: object = None,
    scratch: SketchScratch,
) -> None:
    """Lists of tokens: the k largest q . key of each query head among candidates by estimates.

    q float32 (1, H, E); k of a range of at least as many, n_candidates up to the scratch's; lists
    int32 (J, room) ascending, and int32 (J,). The same lists as `ops.select.best_sketched` (where
    it uses AVX-512, bit for bit: elsewhere products are added in another order), in six launches
    whatever the length. Reads bits / 8 + 2 bytes a token and KV head for every 4 query heads, and
    the K rows of candidates. Raises CudaOpsError where shapes do not fit.
    """
    name, s, seed = "sketches", scratch, int(wanted.seed)
    stored: Any = keys  # tensors and a `Rotation` of this device, not addresses
    kv, bits, factors, rotation, frame = stored
    s.check(name, lists, seed)
    check_floats(f"{name}: q", q, (1, s.n_heads, s.tiles.layout.head_dim))
    check_tiles(name, kv, s.tiles)
    check_frame(name, frame, s.tiles)
    sketches = sketches_of(rotation, s.tiles, bits, factors, len(kv))
    n = s.marks.n_segments
    if len(kv) < n:
        raise CudaOpsError(f"{name}: {len(kv)} segments, scratch was made for {n}")
    place = in_memory(kv.device, *among, wanted.k, wanted.n_candidates)
    given = {"P": s.passes, "enable_fp_fusion": False}
    # By these numbers of warps nothing spills, and 384 threads fit or more. A program of `scan` has
    # two tokens a thread: loads of 16 bytes, and of not too many.
    prepare_kernel[(s.n_heads,)](
        q, rotation.weights, frame.inverse, sketches, place, s.search, T=s.tiles,
        RANGE=RANGE / 127.0, **given, num_warps=16,
    )  # fmt: skip
    scan_kernel[(n, s.n_kv_heads, s.passes.number)](
        sketches, place, s.search, **given, num_warps=16
    )
    narrow_kernel[(s.n_heads,)](sketches, place, s.search, seed, **CHOOSING, **given)
    rerank_kernel[(triton.cdiv(s.search.candidates.list_room, TOKENS), s.n_passes)](
        kv, s.search, T=s.tiles, TOKENS=TOKENS, **given, num_warps=4
    )
    settle_kernel[(s.n_heads,)](place, s.search, seed, **CHOOSING, **given)
    s.place(place, s.unused, lists)
