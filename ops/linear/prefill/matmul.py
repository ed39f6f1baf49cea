"""Prefill: a quantised matrix by many vectors, panel by panel, in register tiles.

A thread takes some panels of 16 rows at a time, and towards the end those of one tile. It unpacks a
run of a tile's columns into its buffer, which stays in L1, multiplies it by all tokens and adds to
sums in memory. The same columns of the next panels follow, while the activations are still in L2.
In the last run, each tile's sums are stored when they are complete: storing all at the end would
wait for memory, as each token's results are on another page. Rows have the file's order, or are
interleaved (`decode.interleaved`), with the same results.
"""

from typing import Any

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.simd import (
    VARIANT,
    load_one_f32,
    prefetch,
    prefetch_l1,
    prefetch_to_write,
    store,
)
from ..arguments import TOKENS, Buffers, MatmulTraits, Matrix, Output
from ..formats import FORMATS, KINDS
from ..sums import load_sums, no_sums, store_rows, store_sums
from .panels import (
    decode_scales,
    panel_layout,
    spread_scales,
    unpack_32,
    unpack_256,
    unpack_interleaved,
)
from .tiles import N_SUMS, PANELS_PER_TILE, SUMS_BYTES, group_layout, multiply

# Panels that a thread takes from the ticket. With more, it reads activations from L3 less often.
# Sums of 512 tokens and 16 panels are 512 KB, half of the L2 of CPUs with AVX-512; AVX2's may have
# 256 KB.
PANELS_AT_ONCE = 16 if VARIANT == "avx512" else 4
TILES = PANELS_AT_ONCE // PANELS_PER_TILE
TILE_ROWS = 16 * PANELS_PER_TILE


@jit
def _panels_of(number, sets):
    """(first panel, number of panels) of a ticket: sets of PANELS_AT_ONCE, then single tiles."""
    if number < sets:
        return PANELS_AT_ONCE * number, PANELS_AT_ONCE
    return PANELS_AT_ONCE * sets + PANELS_PER_TILE * (number - sets), PANELS_PER_TILE


@jit
def _groups_of(n_tokens):
    return (n_tokens + TOKENS - 1) // TOKENS


@jit
def _store_some(sums, rows, out):
    """Store the first rows of a tile's sums of all groups in the first columns of out."""
    for t in range(out.n_tokens):
        lane = sums + t // TOKENS * SUMS_BYTES + t % TOKENS * 64
        for r in range(rows):
            at = lane + r // 16 * TOKENS * 64
            store(out.data, t * out.row_bytes + 4 * r, load_one_f32(at, r % 16 * 4))


def _make_unpack(kind: int, interleaved: bool) -> Any:
    """The jitted function that unpacks n blocks of up to 16 rows into a panel.

    Meanwhile it prefetches the next ones, at address `next_blocks`, if they are blocks of 32 (for
    the others see `_fetch`). rows_buffer: address of memory for scales before they are transposed.
    """
    f, panel_bytes = FORMATS[kind], panel_layout(FORMATS[kind]).n_bytes
    size, block, run = f.n_bytes, f.block, group_layout(FORMATS[kind]).run

    @jit
    def _unpack_rows(w, n, next_blocks, panel, rows_buffer):
        for i in range(n):
            from_, to = w.data + i * size, panel + i * panel_bytes
            if block == 32:
                for r in range(16 * i // n, 16 * (i + 1) // n):
                    for line in range(0, run * size, 64):
                        prefetch_l1(next_blocks, r * w.row_bytes + line)
                unpack_32(kind, from_, w.row_bytes, w.n_rows, to)
            else:
                unpack_256(kind, from_, w.row_bytes, w.n_rows, to)
                for r in range(16):
                    decode_scales(kind, from_ + min(r, w.n_rows - 1) * w.row_bytes, r, rows_buffer)
                spread_scales(kind, rows_buffer, to)

    @jit
    def _unpack_interleaved(w, n, next_blocks, panel, rows_buffer):
        for i in range(n):
            for line in range(0, 16 * size, 64):
                prefetch_l1(next_blocks, i * 16 * size + line)
            unpack_interleaved(kind, w.data + i * 16 * size, panel + i * panel_bytes)

    return _unpack_interleaved if interleaved else _unpack_rows


def _make_fetch(kind: int) -> Any:
    """The jitted function that prefetches a share of the rows of a tile's run into L2.

    All at once, they would wait for each other: a core has some 24 outstanding lines.
    """
    group, n_bytes = group_layout(FORMATS[kind]), FORMATS[kind].n_bytes
    lines = (group.run * n_bytes + 62) // 64 + 1  # for any start in a line
    total = TILE_ROWS * lines

    @jit
    def _fetch(rows, part, parts):
        """Part `part` of `parts`. rows: address of the first, bytes from row to row."""
        address, row_bytes = rows
        first = part * total // parts
        place, line = address + first // lines * row_bytes, first % lines
        for _ in range((part + 1) * total // parts - first):
            prefetch(place, line * 64)
            line += 1
            if line == lines:
                place, line = place + row_bytes, 0

    return _fetch


def _make_use(kind: int) -> Any:
    """The jitted function that multiplies a run of a tile's panels by all tokens."""
    panel_bytes, group = panel_layout(FORMATS[kind]).n_bytes, group_layout(FORMATS[kind])
    x_bytes, run, spread = group.n_bytes, group.run, group.block == 256
    _fetch = _make_fetch(kind)

    @jit
    def _use_run(panels, n, x, sums, next_rows, out):
        """n blocks of the panels; results to the first columns of `out`, unless its address is 0.

        At the end of the matrix a panel may be missing: its sums are computed from what the buffer
        holds, and not read. next_rows: the next tile's, for `_fetch`.
        """
        groups = _groups_of(out.n_tokens)
        for group in range(groups):
            if spread:
                _fetch(next_rows, group, groups)
            tile, w, xt = load_sums(N_SUMS, sums), panels, x
            done = group * TOKENS
            place = out.data + done * out.row_bytes
            if out.data:  # fetch the lines, each from another page, while sums are computed
                for t in range(TOKENS):
                    for p in range(PANELS_PER_TILE):
                        prefetch_to_write(place, t * out.row_bytes + 64 * p)
            for _ in range(n):
                tile = multiply(kind, tile, w, run * panel_bytes, xt)
                w, xt = w + panel_bytes, xt + x_bytes
            if out.data:
                store_rows(TOKENS, tile, Output(place, out.row_bytes, out.n_tokens - done))
            else:
                store_sums(sums, tile)
            x, sums = x + run * x_bytes, sums + SUMS_BYTES

    return _use_run


def matmul_traits(type_name: str) -> MatmulTraits:
    """The traits of a format's kernels for many tokens."""
    f = FORMATS[KINDS[type_name]]
    layout, group = panel_layout(f), group_layout(f)
    run_bytes = PANELS_PER_TILE * group.run * layout.n_bytes + layout.rows_bytes
    return MatmulTraits(*group, run_bytes, group_bytes=TILES * SUMS_BYTES)


def make_panels(type_name: str, interleaved: bool) -> Any:
    """The jitted product of rows of one format by any number of tokens."""
    kind = KINDS[type_name]
    f, layout, group = FORMATS[kind], panel_layout(FORMATS[kind]), group_layout(FORMATS[kind])
    size = f.n_bytes * (16 if interleaved else 1)  # from block to block
    x_bytes, run = group.n_bytes, group.run
    run_bytes = run * layout.n_bytes  # of a panel
    sums_at = matmul_traits(
        type_name
    ).run_bytes  # in a thread's buffer; before them rows to be transposed
    rows_at = sums_at - layout.rows_bytes
    _unpack_run, _use_run = _make_unpack(kind, interleaved), _make_use(kind)

    @jit
    def _panels(w, x, n_blocks, buffer, next_rows, out):
        """Rows of up to PANELS_AT_ONCE panels by all tokens; next_rows: address of the next ones'.

        x: address of the groups, buffer: of the thread's buffer.
        """
        groups, n_panels = _groups_of(out.n_tokens), (w.n_rows + 15) // 16
        for i in range((n_panels + PANELS_PER_TILE - 1) // PANELS_PER_TILE * groups):
            store_sums(buffer + sums_at + i * SUMS_BYTES, no_sums(N_SUMS))
        for start in range(0, n_blocks, run):
            n, sums, ends = min(run, n_blocks - start), buffer + sums_at, start + run >= n_blocks
            next_run = next_rows if ends else w.data + (start + run) * size
            for first in range(0, n_panels, PANELS_PER_TILE):
                for p in range(first, min(first + PANELS_PER_TILE, n_panels)):
                    place = w.data + p * 16 * w.row_bytes + start * size
                    rows = Matrix(place, w.row_bytes, min(16, w.n_rows - 16 * p))
                    next_panel = place + 16 * w.row_bytes if p + 1 < n_panels else next_run
                    panel = buffer + (p - first) * run_bytes
                    _unpack_run(rows, n, next_panel, panel, buffer + rows_at)
                place = w.data + (first + PANELS_PER_TILE) * 16 * w.row_bytes + start * size
                following = place if first + PANELS_PER_TILE < n_panels else next_run, w.row_bytes
                to, left = out.data + first * 64, w.n_rows - 16 * first
                results = to if ends and left >= TILE_ROWS else 0
                tile_out = Output(results, out.row_bytes, out.n_tokens)
                _use_run(buffer, n, x + start * groups * x_bytes, sums, following, tile_out)
                if ends and left < TILE_ROWS:
                    _store_some(sums, left, Output(to, out.row_bytes, out.n_tokens))
                sums += groups * SUMS_BYTES

    return _panels


def make_matmul(type_name: str, interleaved: bool) -> DefinedKernel:
    """The kernel `Y = X W^T` of one format; its traits are `MatmulTraits`."""
    _panels = make_panels(type_name, interleaved)

    @kernel(traits=matmul_traits(type_name))
    def matmul_kernel(
        share: Share, w: Matrix, x: int, n_blocks: int, out: Output, scratch: Buffers
    ):
        """Rows of n_blocks blocks by each token. x: address of the activations in groups."""
        buffer = scratch.data + share.part * scratch.n_bytes
        sets = max(0, w.n_rows // (16 * PANELS_AT_ONCE) - share.parts)
        first, n = _panels_of(take(share.ticket), sets)
        while 16 * first < w.n_rows:
            next_first, next_n = _panels_of(take(share.ticket), sets)
            place, n_rows = w.data + 16 * first * w.row_bytes, min(16 * n, w.n_rows - 16 * first)
            next_rows = w.data + 16 * next_first * w.row_bytes
            to = Output(out.data + first * 64, out.row_bytes, out.n_tokens)
            _panels(Matrix(place, w.row_bytes, n_rows), x, n_blocks, buffer, next_rows, to)
            first, n = next_first, next_n

    return matmul_kernel
