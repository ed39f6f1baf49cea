"""The inner loops of decode: multiply keys by the heads of their group, add values to their sums.

multiply_keys   lanes run along head_dim; a key's products end as 4 partial sums per head in
                `parts`, float32 [heads][16 tokens][4]; with AVX-512, of each two heads,
                [8 pairs of tokens][2 tokens][2 heads][4]
sum_parts       16 tokens x 4 partial sums -> 16 scores, one token a lane
add_value       a strip of 16 to 64 columns of V, summed in registers over the tokens
"""

from llvmlite import ir

from ....jit import simd as v
from ....jit.simd import Tile, at, at_item, read, write
from ..layout import Q4_0, TILE
from ..shape import VEC, WIDE, load_tile, read_row, read_scale, shaped, store_tile
from ..work import HEAD_PARTS, TILE_SCORES


def _to_four(b, x):
    """Four partial sums of the lanes of x, by adding halves."""
    n = x.type.count // 2
    if n < 4:
        return x
    return _to_four(b, b.fadd(v.shuffle(b, x, range(n)), v.shuffle(b, x, range(n, 2 * n))))


def _four_of_each(b, x, y):
    """Two heads' sums of two keys, <8 x f32> of a key each -> 4 of each: key 0 of x, of y, key 1 …

    A blend and one shuffle: adding halves would take a shuffle for each addition.
    """
    in_place = [0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31]
    swapped = [4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27]
    return b.fadd(v.shuffle(b, x, in_place, y), v.shuffle(b, x, swapped, y))


def _eight_of_each(b, x, y):
    """The sums of two keys -> 8 of each."""
    in_place, swapped = [*range(8), *range(24, 32)], [*range(8, 16), *range(16, 24)]
    return b.fadd(v.shuffle(b, x, in_place, y), v.shuffle(b, x, swapped, y))


@shaped()
def widen_scales(b, shape, scales, out):
    """The scales of a tile's rows, if it has any, as float32 [block][token]; addresses.

    Converting them one by one, for each row, would cost as much as the row's products.
    """
    n = shape.layout.scale_row_bytes // 2
    if n:
        every = read(b, scales, v.vty(v.I16, TILE * n))
        for i in range(n):
            block = b.bitcast(v.shuffle(b, every, range(i, TILE * n, n)), v.vty(v.F16, TILE))
            write(b, b.fpext(block, VEC), out, 4 * TILE * i)


@shaped()
def multiply_keys(b, shape, q, row0, row1, scales0, scales1, parts):
    """parts[h][these two tokens] = 4 partial sums of q[h] . key, for each head; addresses all.

    Two keys share each load of q; with 4 heads that is one sum per register and eight in flight.
    """
    lanes, sums = 16 if WIDE else 8, [[None, None] for _ in range(shape.heads)]
    keys = [
        read_row(b, shape.k_type, row, scale, 0, shape.vectors, wide=True)
        for row, scale in ((row0, scales0), (row1, scales1))
    ]
    for i in range(0, shape.padded, lanes):
        c, first = divmod(i, 16)
        k = [v.shuffle(b, key[c], range(first, first + lanes)) for key in keys]
        for h in range(shape.heads):
            x = read(b, q, v.vty(v.F32, lanes), 4 * (h * shape.padded + i))
            sums[h] = [
                b.fmul(k[t], x) if i == 0 else v.fmuladd(b, k[t], x, sums[h][t]) for t in range(2)
            ]
    if WIDE:
        eights = [_eight_of_each(b, *both) for both in sums]
        for h in range(0, shape.heads, 2):
            other = min(h + 1, shape.heads - 1)
            write(b, _four_of_each(b, eights[h], eights[other]), parts, h * HEAD_PARTS)
    else:
        for h, both in enumerate(sums):
            for t, x in enumerate(both):
                write(b, _to_four(b, x), parts, h * HEAD_PARTS + 16 * t)


@shaped()
def sum_parts(b, shape, parts, s, line):
    """s[h][0..15] = sums of the 4 partial sums of 16 tokens; line: bytes from s[h] to s[h + 1].

    `integer_keys` leaves nothing to do.
    """
    if shape.integer_keys:
        return
    for h in range(0, shape.heads, 2 if WIDE else 1):
        place = at(b, parts, h * HEAD_PARTS)
        scores = _scores_of_two(b, place) if WIDE else [_scores_of_one(b, place)]
        for i, x in enumerate(scores[: shape.heads - h]):
            write(b, x, at_item(b, s, line, h + i))


def _scores_of_one(b, parts):
    """Partial sums float32 [16 tokens][4] of a head -> its scores."""
    x, even, odd = [read(b, parts, VEC, 64 * i) for i in range(4)], range(0, 32, 2), range(1, 32, 2)
    while len(x) > 1:
        x = [
            b.fadd(v.shuffle(b, y, even, z), v.shuffle(b, y, odd, z))
            for y, z in zip(x[::2], x[1::2])
        ]
    return x[0]


def _scores_of_two(b, parts):
    """Partial sums float32 [8 pairs of tokens][2 tokens][2 heads][4] -> the scores of each head."""
    x = [read(b, parts, VEC, 64 * i) for i in range(8)]
    while len(x) > 2:
        x = [_pairs_in_quarters(b, *both) for both in zip(x[::2], x[1::2])]
    orders = [
        [16 * (t // 8) + 8 * (t % 2) + 4 * head + t % 8 // 2 for t in range(16)] for head in (0, 1)
    ]
    return [v.shuffle(b, x[0], order, x[1]) for order in orders]


def _pairs_in_quarters(b, x, y):
    """Sums of neighbours: in each quarter those of x, then those of y."""
    even, odd = (
        [4 * (i // 4) + 2 * (i % 2) + k + (16 if i % 4 > 1 else 0) for i in range(16)]
        for k in (0, 1)
    )
    return b.fadd(v.shuffle(b, x, even, y), v.shuffle(b, x, odd, y))


def _sums_at(shape):
    """Places of a strip's sums in out, float32 [heads][padded], as bytes from the strip's first."""
    return [4 * (h * shape.padded + 16 * i) for h in range(shape.heads) for i in range(shape.strip)]


def _strip(shape):
    return Tile("f32", shape.heads * shape.strip)


@shaped(_strip)
def no_sums(b, shape):
    """Zeros for one strip of all heads."""
    return ir.Constant(ir.ArrayType(VEC, shape.heads * shape.strip), None)


@shaped(_strip)
def load_sums(b, shape, out):
    """The sums of one strip of all heads, from out at the address of the strip."""
    return load_tile(b, out, _sums_at(shape))


@shaped()
def store_sums(b, shape, sums, out):
    """Store the sums of one strip of all heads, the inverse of `load_sums`."""
    store_tile(b, sums, out, _sums_at(shape))


@shaped(_strip)
def add_value(b, shape, sums, row, scales, odd, p):
    """sums[h] += p[h] * strip of V; `odd`: the strip is the second half of its block of 32.

    row, scales: addresses of the strip in the V row and of its first scale; p: of p[0][token],
    float32 [heads][16].
    """
    if _halves_blocks(shape):
        x = [_half_block(b, row, scales, odd)]
    else:
        x = read_row(b, shape.v_type, row, scales, 0, shape.strip, wide=True)
    for h in range(shape.heads):
        w = v.splat(b, read(b, p, v.F32, h * TILE_SCORES), 16)
        for i in range(shape.strip):
            k = h * shape.strip + i
            sums = b.insert_value(sums, v.fmuladd(b, x[i], w, b.extract_value(sums, k)), k)
    return sums


def _halves_blocks(shape):
    """Whether a strip is half a block of q4_0, whose nibbles the other half shares."""
    return shape.v_type.code == Q4_0 and shape.strip == 1


def _half_block(b, row, scales, odd):
    """16 elements of a q4_0 block: its low nibbles, or the high ones when `odd` is 1."""
    wide = v.vty(v.I32, 16)
    q = b.zext(read(b, row, v.vty(v.I8, 16)), wide)
    shift = b.shl(b.trunc(odd, v.I32), ir.Constant(v.I32, 2))
    q = b.and_(b.lshr(q, v.splat(b, shift, 16)), v.const(wide, 15))
    d = v.splat(b, read_scale(b, scales, 0, wide=True), 16)
    return b.fmul(b.fsub(b.sitofp(q, VEC), v.const(VEC, 8.0)), d)


@shaped(lambda shape: v.INTP)
def strip_offset(b, shape, index):
    """Byte of strip `index` in a V row."""
    n_bytes = shape.v_type.block_bytes
    if _halves_blocks(shape):
        return b.mul(b.ashr(index, ir.Constant(v.I64, 1)), ir.Constant(v.I64, n_bytes))
    return b.mul(index, ir.Constant(v.I64, shape.strip * n_bytes // 2))
