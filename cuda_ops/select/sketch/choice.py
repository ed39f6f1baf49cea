"""The checking wrapper: each query head's best products among candidates by estimates."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from ....ops.attention.layout import TileLayout
from ....ops.select import sketch_bits
from ...attention.tiles import check_floats, check_place, check_tiles
from ...errors import CudaOpsError
from ..lists import ListScratch, check_lists
from .kernels import (
    ENOUGH,
    SAMPLE,
    narrow_kernel,
    prepare_kernel,
    rerank_kernel,
    scan_kernel,
    settle_kernel,
)
from .keys import Rotation, check_rotation, check_sketches, key_constants

RANGE = 0.65
"""As `ops.select.queries.RANGE`, which is a module of kernels for the CPU."""
BLOCK = 1024  # candidates that `narrow` and `settle` read at a time
TOKENS = 128  # that a program of `rerank` multiplies
WARPS = {"prepare": 16, "scan": 16, "narrow": 16, "rerank": 4, "settle": 16}
"""By kernel: by these nothing spills, and 384 threads fit or more.

A program of `scan` has two tokens a thread: loads of 16 bytes, and of not too many."""


class SketchedKeys(NamedTuple):
    """Stored keys and their sketches, as `sketch_keys` takes and writes them."""

    kv: torch.Tensor
    bits: torch.Tensor
    factors: torch.Tensor
    rotation: Rotation


class SketchScratch(ListScratch):
    """Memory for `best_sketched`; k: the most candidates that a query head may have."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(n_heads, n_kv_heads, n_ctx, device)
        self.layout, self.bits_of_key = layout, sketch_bits(layout.head_dim)
        self.k = min(k, self.room)
        together = next(n for n in (4, 3, 2, 1) if self.group % n == 0)
        pairs, n_passes = -(-together // 2), n_heads // together
        # What a sample lets through is some 1.7 k, or a few of 2,048 tokens.
        self.found_room = min(self.room, 2 * self.k + ENOUGH + self.room // 256)
        self.list_room = min(self.room, together * self.k)
        self.rows = self.floats(n_heads, layout.padded)
        self.work = self.floats(n_heads, 2 * self.bits_of_key)
        shape = n_passes, self.bits_of_key // 4, 16, 2 * pairs
        self.tables = self.zeros(*shape, dtype=torch.int16)
        self.limits, self.n_found = self.zeros(n_heads), self.zeros(n_heads)
        self.n_listed = self.zeros(n_passes)
        self.marks = self.zeros(n_passes, *self.bits.shape[1:])
        self.found = self.zeros(n_heads, self.found_room, dtype=torch.int64)
        self.listed = self.zeros(n_passes, self.list_room)
        self.scored = self.zeros(n_heads, self.list_room, dtype=torch.int64)
        self.unused = self.zeros(n_kv_heads)  # see `place_kernel`
        self.options: dict[str, dict[str, Any]] = {
            name: known | {"num_warps": WARPS[name], "enable_fp_fusion": False}
            for name, known in choice_constants(layout, n_kv_heads, self.group).items()
        }

    def floats(self, *shape: int) -> torch.Tensor:
        """Zeros, float32."""
        return self.zeros(*shape, dtype=torch.float32)


def choice_constants(layout: TileLayout, n_kv_heads: int, group: int) -> dict[str, dict[str, Any]]:
    """What each kernel is specialised by."""
    known = key_constants(layout, n_kv_heads)
    together = next(n for n in (4, 3, 2, 1) if group % n == 0)
    pairs = -(-together // 2)
    heads = {"J": n_kv_heads, "G": group, "T": together, "HEADS": 2 * pairs}
    bits = {"BITS": sketch_bits(layout.head_dim)}
    of_query = "HEAD_DIM", "BLOCKS", "STORED", "K_KIND", "ROTATION", "LOG", "FACTOR"
    of_rows = "J", "TILE_BYTES", "K_ROW", "SCALES_AT", "SCALES_ROW", "K_KIND", "STORED"
    passes = {"T": together, "PASSES": group // together}
    return {
        "prepare": heads | bits | {name: known[name] for name in of_query}
        | {"RANGE": RANGE / 127.0, "SAMPLE": SAMPLE, "ENOUGH": ENOUGH},
        "scan": passes | bits | {"PAIRS": pairs},
        "narrow": heads | bits | {"BLOCK": BLOCK},
        "rerank": passes | {name: known[name] for name in of_rows} | {"TOKENS": TOKENS},
        "settle": {"G": group, "T": together, "BLOCK": BLOCK},
    }  # fmt: skip


def best_sketched(
    q: torch.Tensor,
    keys: SketchedKeys,
    among: torch.Tensor,
    index: torch.Tensor,
    counts: torch.Tensor,
    *,
    seed: int,
    scratch: SketchScratch,
) -> None:
    """Lists of tokens: the k largest q . key of each query head among candidates by estimates.

    q float32 (1, H, E); among int32 (first, last, stop, k, n_candidates), on the GPU, k of a range
    of at least as many, n_candidates up to the scratch's; index int32 (J, room) ascending, counts
    int32 (J,). The same lists as `ops.select.best_sketched` (where it uses AVX-512, bit for bit:
    elsewhere products are added in another order), in six launches whatever the length. Reads
    bits / 8 + 2 bytes a token and KV head for every 4 query heads, and the K rows of candidates.
    Raises CudaOpsError where shapes do not fit.
    """
    name, s = "sketches", scratch
    if not 0 <= seed < 1 << 31:  # more would be 64 bits wide in the kernels
        raise CudaOpsError(f"{name}: seed is {seed}, expected 0 to 2^31 - 1")
    check_floats(f"{name}: q", q, (1, s.n_heads, s.layout.head_dim))
    check_tiles(name, keys.kv, s.layout, s.n_kv_heads)
    check_rotation(name, keys.rotation, s.bits_of_key)
    check_sketches(name, keys.bits, keys.factors, len(keys.kv), s.n_kv_heads, s.bits_of_key)
    if len(keys.kv) < s.n_segments:
        raise CudaOpsError(f"{name}: {len(keys.kv)} segments, scratch was made for {s.n_segments}")
    check_place(f"{name}: among", among, 5)
    check_lists(name, index, counts, s)
    n_passes, given, options = len(s.n_listed), (keys.bits, keys.factors), s.options
    prepare_kernel[(s.n_heads,)](
        q, keys.rotation.weights, *given, among, s.rows, s.work, s.tables, s.limits, s.n_found,
        s.n_listed, s.k, **options["prepare"],
    )  # fmt: skip
    scan_kernel[(s.n_segments, s.n_kv_heads, n_passes // s.n_kv_heads)](
        *given, s.tables, among, s.limits, s.marks, s.bits, s.totals, s.found, s.n_found,
        s.found_room, **options["scan"],
    )  # fmt: skip
    narrow_kernel[(s.n_heads,)](
        *given, s.tables, among, s.marks, s.found, s.n_found, s.listed, s.n_listed, seed,
        s.n_segments, s.found_room, s.list_room, s.k, **options["narrow"],
    )  # fmt: skip
    rerank_kernel[(triton.cdiv(s.list_room, TOKENS), n_passes)](
        keys.kv, s.rows, s.listed, s.n_listed, s.scored, s.list_room, **options["rerank"],
    )  # fmt: skip
    settle_kernel[(s.n_heads,)](
        s.scored, s.n_listed, among, s.bits, s.totals, seed, s.n_segments, s.list_room, s.k,
        **options["settle"],
    )  # fmt: skip
    s.place(among, s.unused, index, counts)
