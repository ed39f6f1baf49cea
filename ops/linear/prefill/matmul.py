"""Prefill: a quantised matrix by many vectors, panel by panel, in register tiles.

Threads take panels of 16 rows, four by four and the last ones one by one. A run of columns is
unpacked into the thread's buffer, which stays in L1, and used for all tokens, whose sums wait in
another; then the same columns of the next panel, while the activations are still in L2. Rows come
as they are in a file, or interleaved (`decode.interleaved`): the same results.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from ...cache import jit
from ...simd import load_f32, load_one_f32, prefetch_l1, store
from ...steps import Step
from ...steps.define import step
from ...steps.words import take
from ..formats import FORMATS, KINDS
from ..groups import TOKENS
from .panels import decode_row, panel_layout, spread, unpack_32, unpack_interleaved
from .tiles import group_layout, load_sums, multiply, no_sums, store_sums

PANELS = 4  # that a thread takes at a time: what it reads of L3 is a fourth


@jit
def _panels_of(number, sets):
    """(first panel, how many) of a ticket: so many sets of PANELS, then single ones."""
    if number < sets:
        return PANELS * number, PANELS
    return (PANELS - 1) * sets + number, 1


@jit
def _write_out(sums, groups, rows, n_tokens, out, n_rows):
    """The sums of panels, each float32[T][16], to columns of out, float32[T, N]."""
    for t in range(n_tokens):
        place, lane = out + t * n_rows * 4, sums + t * 64
        for _ in range(rows // 16):
            store(place, 0, load_f32(lane, 0))
            place, lane = place + 64, lane + groups * TOKENS * 64
        for r in range(rows % 16):
            store(place, 4 * r, load_one_f32(lane, 4 * r))


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


def matmul_kernel(type_name: str, interleaved: bool) -> Step:
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
    def _use_run(panel, n, x, groups, sums):
        for _ in range(groups):
            tile, w, xt = load_sums(sums), panel, x
            for _ in range(n):
                tile = multiply(kind, tile, w, xt)
                w, xt = w + panel_bytes, xt + x_bytes
            store_sums(sums, tile)
            x, sums = x + run * x_bytes, sums + TOKENS * 64

    @jit
    def _panels(w, stride, rows, x, n_blocks, groups, panel, then):
        """Gives the address of the sums; `then` is that of what comes next."""
        waiting = panel + run * panel_bytes
        sums, n_panels = waiting + rows_bytes, (rows + 15) // 16
        for g in range(n_panels * groups):
            store_sums(sums + g * TOKENS * 64, no_sums())
        for start in range(0, n_blocks, run):
            n = min(run, n_blocks - start)
            last = w + (start + run) * size if start + run < n_blocks else then
            for p in range(n_panels):
                place = w + p * 16 * stride + start * size
                ahead = place + 16 * stride if p + 1 < n_panels else last
                _unpack_run(place, stride, min(16, rows - 16 * p), n, ahead, panel, waiting)
                place = sums + p * groups * TOKENS * 64
                _use_run(panel, n, x + start * groups * x_bytes, groups, place)
        return sums

    facts = (*astuple(group), run * panel_bytes + rows_bytes, PANELS * TOKENS * 64)

    @step("iiiiiiiii", facts)
    def _matmul_kernel(
        part, parts, ticket, w, stride, n_rows, x, n_blocks, out, n_tokens, scratch, each
    ):
        groups = (n_tokens + TOKENS - 1) // TOKENS
        sets = max(0, n_rows // (16 * PANELS) - parts)
        first, n = _panels_of(take(ticket), sets)
        while 16 * first < n_rows:
            then, after = _panels_of(take(ticket), sets)
            rows = min(16 * n, n_rows - 16 * first)
            sums = _panels(
                w + first * 16 * stride, stride, rows, x, n_blocks, groups,
                scratch + part * each, w + then * 16 * stride,
            )  # fmt: skip
            _write_out(sums, groups, rows, n_tokens, out + first * 64, n_rows)
            first, n = then, after

    return _matmul_kernel
