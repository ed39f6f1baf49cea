"""The inner loops of a chunk: register tiles of query rows x 16 keys, and of rows x 16 columns.

kt      float32 [tile][padded][16 keys]    K of a block of keys, transposed
vs      float32 [vector][key][16 columns]  V of the block, a strip of 16 columns after another
qp      float32 [panel][padded][rows]      scaled queries, `rows` of them to a panel
scores  float32 [row][keys]
sums    float32 [row][padded]
"""

from llvmlite import ir

from ....jit import simd as v
from ....jit.simd import Tile, at, emit_transpose_8, read, write
from ..layout import TILE
from ..shape import VEC, load_tile, read_row, shaped, store_tile


@shaped()
def unpack_keys(b, shape, rows, scales, kt):
    """kt[32 elements][16 keys] = one block of 32 elements of the 16 K rows of a tile.

    rows, scales: addresses of the block in K row 0 and of its scale in scale row 0.
    """
    layout = shape.layout
    for half in (0, 8):
        x = []
        for t in range(half, half + 8):
            row = at(b, rows, t * layout.k_row_bytes)
            scale = at(b, scales, t * layout.scale_row_bytes)
            x.append(read_row(b, shape.k_type, row, scale, 0, 2))
        for c in range(2):
            for lo in (0, 8):
                part = [v.shuffle(b, y[c], range(lo, lo + 8)) for y in x]
                for e, column in enumerate(emit_transpose_8(b, part)):
                    write(b, column, kt, 64 * (16 * c + lo + e) + 4 * half)


@shaped()
def unpack_value(b, shape, row, scales, vs):
    """One block of 32 elements of a V row into its two strips, one block of keys apart."""
    for c, x in enumerate(read_row(b, shape.v_type, row, scales, 0, 2)):
        write(b, x, vs, c * shape.keys * 64)


def _panel(shape):
    return Tile("f32", shape.panel)


@shaped(_panel)
def no_panel(b, shape):
    """Zeros for one panel of rows x 16."""
    return ir.Constant(ir.ArrayType(VEC, shape.panel), None)


@shaped(_panel)
def add_scores(b, shape, sums, q, k):
    """sums[row] += q[row] * k[16 keys] for one element; addresses of qp[panel][e], kt[tile][e]."""
    return _outer(b, sums, read(b, k, VEC), lambda r: read(b, q, v.F32, 4 * r), shape.panel)


@shaped(_panel)
def add_values(b, shape, sums, p, x):
    """sums[row] += p[row][key] * v[16 columns] for one key; addresses of p[0][key], vs[..][key]."""
    stride = 4 * shape.keys
    return _outer(b, sums, read(b, x, VEC), lambda r: read(b, p, v.F32, stride * r), shape.panel)


def _outer(b, sums, x, factor, rows):
    for r in range(rows):
        w = v.splat(b, factor(r), 16)
        sums = b.insert_value(sums, v.fmuladd(b, x, w, b.extract_value(sums, r)), r)
    return sums


@shaped()
def put_scores(b, shape, sums, scores):
    """Store a panel of rows x 16 keys at an address in scores."""
    store_tile(b, sums, scores, [4 * shape.keys * r for r in range(shape.panel)])


def _rows_of_sums(shape):
    return [4 * shape.padded * r for r in range(shape.panel)]


@shaped(_panel)
def get_panel(b, shape, out):
    """Load a panel of rows x 16 columns from an address in sums."""
    return load_tile(b, out, _rows_of_sums(shape))


@shaped()
def put_panel(b, shape, sums, out):
    """Store a panel of rows x 16 columns at an address in sums."""
    store_tile(b, sums, out, _rows_of_sums(shape))


assert TILE == 16  # a tile's keys are the lanes of one vector
