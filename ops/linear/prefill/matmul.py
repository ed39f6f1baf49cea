"""Prefill: a quantised matrix by many vectors, panel by panel, in register tiles.

Threads take panels of 16 rows, four by four and the last ones by what a tile takes. A run of
columns of these is unpacked into the thread's buffer, which stays in L1, and used for all tokens,
whose sums wait in another; then the same columns of the next panels, while the activations are
still in L2. The last run's sums go to their places as they come: all in one go they would wait for
memory, a page for each token. Rows come as they are in a file, or interleaved
(`decode.interleaved`): the same results.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from ....jit.cached import jit
from ....jit.launch import Kernel
from ....jit.launch.atomics import take
from ....jit.launch.legacy_define import step
from ....jit.simd import load_one_f32, prefetch_l1, prefetch_to_write, store
from ..formats import FORMATS, KINDS
from ..groups import TOKENS
from .panels import decode_row, panel_layout, spread, unpack_32, unpack_interleaved
from .tiles import (
    SUMS_BYTES,
    TOGETHER,
    group_layout,
    load_sums,
    multiply,
    no_sums,
    store_rows,
    store_sums,
)

PANELS = 4  # that a thread takes at a time: what it reads of L3 is a fourth
TILES = PANELS // TOGETHER
ROWS = 16 * TOGETHER  # of a tile


@jit
def _panels_of(number, sets):
    """(first panel, how many) of a ticket: so many sets of PANELS, then those of single tiles."""
    if number < sets:
        return PANELS * number, PANELS
    return PANELS * sets + TOGETHER * (number - sets), TOGETHER


@jit
def _store_some(sums, rows, n_tokens, out, n_rows):
    """The first rows of a tile's sums of all groups, to columns of out, float32[T, N]."""
    for t in range(n_tokens):
        lane = sums + t // TOKENS * SUMS_BYTES + t % TOKENS * 64
        for r in range(rows):
            at = lane + r // 16 * TOKENS * 64
            store(out, 4 * (t * n_rows + r), load_one_f32(at, r % 16 * 4))


def _unpacking(kind: int, interleaved: bool) -> Any:
    """The jitted function that unpacks n blocks of 16 rows at address w into a panel.

    Meanwhile the next ones, at address `ahead`, are asked for.
    """
    f, panel_bytes = FORMATS[kind], panel_layout(FORMATS[kind]).n_bytes
    size, block, run = f.n_bytes, f.block, group_layout(kind).run

    @jit
    def _unpack_rows(w, stride, rows, n, ahead, panel, waiting):
        for i in range(n):
            for r in range(16 * i // n, 16 * (i + 1) // n):
                for line in range(0, run * size, 64):
                    prefetch_l1(ahead, r * stride + line)
            from_, to = w + i * size, panel + i * panel_bytes
            if block == 32:
                unpack_32(kind, from_, stride, rows, to)
            else:
                for r in range(16):
                    decode_row(kind, from_ + min(r, rows - 1) * stride, r, waiting, to)
                spread(kind, waiting, to)

    @jit
    def _unpack_interleaved(w, stride, rows, n, ahead, panel, waiting):
        for i in range(n):
            for line in range(0, 16 * size, 64):
                prefetch_l1(ahead, i * 16 * size + line)
            unpack_interleaved(kind, w + i * 16 * size, panel + i * panel_bytes)

    return _unpack_interleaved if interleaved else _unpack_rows


def matmul_kernel(type_name: str, interleaved: bool) -> Kernel:
    """`Y = X W^T` of one format.

    Arguments: address, row stride in bytes and rows of W; address of the activations in groups;
    blocks per row; address of y, float32[T, N]; T; address of the buffers and bytes for each
    thread. Facts: the fields of the groups' layout; bytes of a thread's buffer for a run and rows
    to be transposed, and for the sums of each group.
    """
    kind = KINDS[type_name]
    f, where, group = FORMATS[kind], panel_layout(FORMATS[kind]), group_layout(kind)
    size = f.n_bytes * (16 if interleaved else 1)  # from block to block
    panel_bytes, rows_bytes = where.n_bytes, where.rows_bytes
    x_bytes, run = group.n_bytes, group.run
    _unpack_run = _unpacking(kind, interleaved)

    @jit
    def _use_run(panels, n, x, groups, sums, out, n_rows, n_tokens):
        """n blocks of a tile's panels by all tokens; results to `out` unless that is 0.

        Where a panel is missing, the buffer holds another's or nothing: its sums are not read.
        """
        for group in range(groups):
            tile, w, xt, place = load_sums(sums), panels, x, out + group * TOKENS * n_rows * 4
            if out:  # the lines come from memory, from as many pages, while sums are computed
                for t in range(TOKENS):
                    for p in range(TOGETHER):
                        prefetch_to_write(place, t * n_rows * 4 + 64 * p)
            for _ in range(n):
                tile = multiply(kind, tile, w, run * panel_bytes, xt)
                w, xt = w + panel_bytes, xt + x_bytes
            if out:
                store_rows(tile, place, n_rows * 4, n_tokens - group * TOKENS)
            else:
                store_sums(sums, tile)
            x, sums = x + run * x_bytes, sums + SUMS_BYTES

    @jit
    def _panels(w, stride, rows, x, n_blocks, n_tokens, buffers, then, out, n_rows):
        """`then` is the address of what comes next."""
        groups, n_panels = (n_tokens + TOKENS - 1) // TOKENS, (rows + 15) // 16
        waiting = buffers + TOGETHER * run * panel_bytes
        all_sums = waiting + rows_bytes
        for i in range((n_panels + TOGETHER - 1) // TOGETHER * groups):
            store_sums(all_sums + i * SUMS_BYTES, no_sums())
        for start in range(0, n_blocks, run):
            n, sums = min(run, n_blocks - start), all_sums
            last = w + (start + run) * size if start + run < n_blocks else then
            for first in range(0, n_panels, TOGETHER):
                for p in range(first, min(first + TOGETHER, n_panels)):
                    place = w + p * 16 * stride + start * size
                    ahead = place + 16 * stride if p + 1 < n_panels else last
                    panel = buffers + (p - first) * run * panel_bytes
                    _unpack_run(place, stride, min(16, rows - 16 * p), n, ahead, panel, waiting)
                to, left = out + first * 64, rows - 16 * first
                ends = start + run >= n_blocks
                _use_run(
                    buffers, n, x + start * groups * x_bytes, groups, sums,
                    to if ends and left >= ROWS else 0, n_rows, n_tokens,
                )  # fmt: skip
                if ends and left < ROWS:
                    _store_some(sums, left, n_tokens, to, n_rows)
                sums += groups * SUMS_BYTES

    facts = (*astuple(group), TOGETHER * run * panel_bytes + rows_bytes, TILES * SUMS_BYTES)

    @step("iiiiiiiii", facts)
    def _matmul_kernel(
        part, parts, ticket, w, stride, n_rows, x, n_blocks, out, n_tokens, scratch, each
    ):
        sets = max(0, n_rows // (16 * PANELS) - parts)
        first, n = _panels_of(take(ticket), sets)
        while 16 * first < n_rows:
            then, after = _panels_of(take(ticket), sets)
            rows = min(16 * n, n_rows - 16 * first)
            _panels(
                w + first * 16 * stride, stride, rows, x, n_blocks, n_tokens,
                scratch + part * each, w + then * 16 * stride, out + first * 64, n_rows,
            )  # fmt: skip
            first, n = then, after

    return _matmul_kernel
