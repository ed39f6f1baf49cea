"""Prefill: a quantised matrix by many vectors, panel by panel, in register tiles.

Threads take panels of 16 rows one by one. A run of columns is unpacked into the thread's buffer,
which stays in L1, and used for all tokens, whose sums wait in another. Rows come as they are in a
file, or interleaved (`interleaved`): the same results.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..cache import jit
from ..simd import load_f32, load_one_f32, prefetch_l1, store
from ..steps import Step, step
from .grouped import RUN, TOKENS
from .kformats import FORMATS
from .panels import decode_row, panel_layout, spread, unpack_32, unpack_interleaved
from .share import take
from .tiles import group_layout, load_sums, multiply, no_sums, store_sums


def scratch_bytes(kind: int, n_tokens: int) -> int:
    """Bytes each thread of the kernel works in: a run, rows to be transposed, sums of a panel."""
    f, where = FORMATS[kind], panel_layout(FORMATS[kind])
    groups = -(-n_tokens // TOKENS)
    return RUN // f.block * where.n_bytes + where.rows_bytes + groups * TOKENS * 64


@jit
def _write_out(sums, rows, n_tokens, out, n_rows):
    """The sums of a panel, float32[T][16], to a column of tiles of out, float32[T, N]."""
    for t in range(n_tokens):
        if rows == 16:
            store(out, t * n_rows * 4, load_f32(sums, t * 64))
        else:
            for r in range(rows):
                store(out, (t * n_rows + r) * 4, load_one_f32(sums, t * 64 + 4 * r))


def _unpacking(kind: int, interleaved: bool) -> Any:
    """The jitted function that unpacks n blocks of 16 rows at address w into a panel.

    Meanwhile the next ones, at address `ahead`, are asked for.
    """
    f, panel_bytes = FORMATS[kind], panel_layout(FORMATS[kind]).n_bytes
    size, block, run = f.n_bytes, f.block, RUN // f.block

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


@cache
def matmul_kernel(kind: int, interleaved: bool = False) -> Step:
    """`Y = X W^T` of one format.

    Arguments: address, row stride in bytes and rows of W; address of the activations in groups;
    blocks per row; address of y, float32[T, N]; T; address of the buffers and bytes for each
    thread.
    """
    f, where, x_bytes = FORMATS[kind], panel_layout(FORMATS[kind]), group_layout(kind).n_bytes
    size, run = f.n_bytes * (16 if interleaved else 1), RUN // f.block  # size: from block to block
    panel_bytes, rows_bytes = where.n_bytes, where.rows_bytes
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
    def _one_panel(w, stride, rows, x, n_blocks, groups, panel, then):
        """Gives the address of the sums; `then` is that of the next panel."""
        waiting = panel + run * panel_bytes
        sums = waiting + rows_bytes
        for g in range(groups):
            store_sums(sums + g * TOKENS * 64, no_sums())
        for start in range(0, n_blocks, run):
            n = min(run, n_blocks - start)
            ahead = w + (start + run) * size if start + run < n_blocks else then
            _unpack_run(w + start * size, stride, rows, n, ahead, panel, waiting)
            _use_run(panel, n, x + start * groups * x_bytes, groups, sums)
        return sums

    @step("iiiiiiiii")
    def _matmul_kernel(
        part, parts, ticket, w, stride, n_rows, x, n_blocks, out, n_tokens, scratch, each
    ):
        groups = (n_tokens + TOKENS - 1) // TOKENS
        first = take(ticket) * 16
        while first < n_rows:
            then, rows = take(ticket) * 16, min(16, n_rows - first)
            sums = _one_panel(
                w + first * stride, stride, rows, x, n_blocks, groups,
                scratch + part * each, w + then * stride,
            )  # fmt: skip
            _write_out(sums, rows, n_tokens, out + first * 4, n_rows)
            first = then

    return _matmul_kernel
