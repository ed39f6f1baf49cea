"""The inner loops of a chunk: register tiles of query rows x 16 keys, and of rows x 16 columns.

kt      float32 [tile][padded][16 keys]    K of a block of keys, transposed
vs      float32 [vector][key][16 columns]  V of the block, a strip of 16 columns after another
qp      float32 [panel][padded][rows]      scaled queries, `rows` of them to a panel
scores  float32 [row][keys]
sums    float32 [row][padded]
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.simd import Tile, at, read, write
from ..layout import TILE
from ..shape import VEC, read_row

N = types.intp


def _transpose8(b, rows):
    """8 vectors of 8 floats, transposed by in-lane shuffles and one exchange of halves."""
    pairs = [
        v.shuffle(b, rows[i], lanes, rows[i + 1])
        for i in (0, 2, 4, 6)
        for lanes in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
    ]
    quads = [
        v.shuffle(b, pairs[i], lanes, pairs[i + 2])
        for i in (0, 1, 4, 5)
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
    ]
    return [
        v.shuffle(b, quads[i], lanes, quads[i + 4])
        for lanes in ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
        for i in range(4)
    ]


@intrinsic
def unpack_keys(typingctx, shape, rows, scales, kt):
    """kt[32 elements][16 keys] = one block of 32 elements of the 16 K rows of a tile.

    rows, scales: addresses of the block in K row 0 and of its scale in scale row 0.
    """

    def codegen(ctx, b, sig, vals):
        rows, scales, kt = (at(b, x) for x in vals[1:])
        lay = shape.layout
        for half in (0, 8):
            x = []
            for t in range(half, half + 8):
                row = at(b, rows, t * lay.k_row_bytes)
                scale = at(b, scales, t * lay.scale_row_bytes)
                x.append(read_row(b, shape.k_type, row, scale, 0, 2))
            for c in range(2):
                for lo in (0, 8):
                    part = [v.shuffle(b, y[c], range(lo, lo + 8)) for y in x]
                    for e, column in enumerate(_transpose8(b, part)):
                        write(b, column, kt, 64 * (16 * c + lo + e) + 4 * half)
        return ctx.get_dummy_value()

    return types.void(shape, N, N, N), codegen


@intrinsic
def unpack_value(typingctx, shape, row, scales, vs):
    """One block of 32 elements of a V row into its two strips, one block of keys apart."""

    def codegen(ctx, b, sig, vals):
        row, scales, vs = (at(b, x) for x in vals[1:])
        for c, x in enumerate(read_row(b, shape.v_type, row, scales, 0, 2)):
            write(b, x, vs, c * shape.keys * 64)
        return ctx.get_dummy_value()

    return types.void(shape, N, N, N), codegen


@intrinsic
def no_panel(typingctx, shape):
    """Zeros for one panel of rows x 16."""
    out = Tile("f32", shape.panel)
    return out(shape), lambda ctx, b, sig, vals: ir.Constant(ctx.get_value_type(out), None)


@intrinsic
def add_scores(typingctx, shape, sums, q, k):
    """sums[row] += q[row] * k[16 keys] for one element; addresses of qp[panel][e], kt[tile][e]."""

    def codegen(ctx, b, sig, vals):
        q, k = at(b, vals[2]), read(b, vals[3], VEC)
        return _outer(b, vals[1], k, lambda r: read(b, q, v.F32, 4 * r), shape.panel)

    return sums(shape, sums, N, N), codegen


@intrinsic
def add_values(typingctx, shape, sums, p, x):
    """sums[row] += p[row][key] * v[16 columns] for one key; addresses of p[0][key], vs[..][key]."""

    def codegen(ctx, b, sig, vals):
        p, x = at(b, vals[2]), read(b, vals[3], VEC)
        stride = 4 * shape.keys
        return _outer(b, vals[1], x, lambda r: read(b, p, v.F32, stride * r), shape.panel)

    return sums(shape, sums, N, N), codegen


def _outer(b, sums, x, factor, rows):
    for r in range(rows):
        w = v.splat(b, factor(r), 16)
        sums = b.insert_value(sums, v.fmuladd(b, x, w, b.extract_value(sums, r)), r)
    return sums


@intrinsic
def put_scores(typingctx, shape, sums, scores):
    """Store a panel of rows x 16 keys at an address in scores."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[2])
        for r in range(shape.panel):
            write(b, b.extract_value(vals[1], r), place, 4 * shape.keys * r)
        return ctx.get_dummy_value()

    return types.void(shape, sums, N), codegen


@intrinsic
def get_panel(typingctx, shape, out):
    """Load a panel of rows x 16 columns from an address in sums."""
    tile = Tile("f32", shape.panel)

    def codegen(ctx, b, sig, vals):
        place, value = at(b, vals[1]), ir.Constant(ctx.get_value_type(tile), None)
        for r in range(shape.panel):
            x = read(b, place, VEC, 4 * shape.padded * r)
            value = b.insert_value(value, x, r)
        return value

    return tile(shape, N), codegen


@intrinsic
def put_panel(typingctx, shape, sums, out):
    """Store a panel of rows x 16 columns at an address in sums."""

    def codegen(ctx, b, sig, vals):
        place = at(b, vals[2])
        for r in range(shape.panel):
            write(b, b.extract_value(vals[1], r), place, 4 * shape.padded * r)
        return ctx.get_dummy_value()

    return types.void(shape, sums, N), codegen


assert TILE == 16  # a tile's keys are the lanes of one vector
